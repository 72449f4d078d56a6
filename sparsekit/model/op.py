"""An operator as its `op.py` describes it: what is computed, on what, and how it is exercised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sparsekit.model.call import Call

# seed: the workloads of the two pull requests that this project began with, and their edge cases.
TAGS = ("smoke", "corner", "perf", "sanitize", "seed")


class _Required:
    """The default of a scalar that has none."""

    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()


@dataclass(frozen=True)
class Tensor:
    """A tensor argument or result.

    shape: dim names (an integer scalar counts as a dim) or fixed sizes. dtypes: element types that
    are taken; for an output, the one that is made, or a scalar's name in braces. optional: an input
    may be None, an output is made when `return_NAME=True`. The last stride must be 1.
    divisible_by: what the address in bytes must be a multiple of. stride_divisible_by: what every
    other stride in elements must be a multiple of.
    """

    name: str
    shape: tuple[str | int, ...]
    dtypes: tuple[str, ...]
    optional: bool = False
    divisible_by: int = 1
    stride_divisible_by: int = 1


@dataclass(frozen=True)
class Scalar:
    """A scalar argument: a float, an int, or the name of an element type."""

    name: str
    type: Literal["float", "int", "dtype"]
    default: Any = REQUIRED


@dataclass(frozen=True)
class Work:
    """What one call must do at least: floating-point operations and bytes moved once each."""

    flop: int
    bytes: int


@dataclass(frozen=True)
class Case:
    """One workload: sizes by name, layout options by name, tags, and the seed of its data."""

    name: str
    dims: Mapping[str, int]
    tags: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Op:
    """An operator.

    inputs: in the order of the callable's parameters. outputs: in the order of its results.
    check(call): what is wrong with a call whose tensors fit, else None. probes: the data sets that
    `verify` runs each case with; the first is the case's own. work(case): FLOP and bytes. batch:
    the dim along which rows must not influence each other's bits; empty when there is none. name
    and folder are filled in when the folder is found; reference.py lies beside op.py.
    """

    summary: str
    inputs: tuple[Tensor | Scalar, ...]
    outputs: tuple[Tensor, ...]
    cases: tuple[Case, ...]
    work: Callable[[Case], Work]
    check: Callable[[Call], str | None] = lambda call: None
    probes: tuple[str, ...] = ("random",)
    batch: str = ""
    name: str = ""
    folder: Path = Path()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Input tensors, then outputs."""
        return (*(i for i in self.inputs if isinstance(i, Tensor)), *self.outputs)

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return tuple(i for i in self.inputs if isinstance(i, Scalar))

    def case(self, name: str) -> Case | None:
        return next((c for c in self.cases if c.name == name), None)


def with_settings(case: Case, settings: Mapping[str, str]) -> Case:
    """The case with `--set NAME=VALUE` applied: dims take integers, options their own type.

    Raises ValueError with the name of what the case does not have, or a value that does not fit.
    """
    dims, options = dict(case.dims), dict(case.options)
    for name, text in settings.items():
        if name in dims:
            dims[name] = int(text)
        elif name in options:
            kind = type(options[name])
            options[name] = text.lower() in ("1", "true", "yes") if kind is bool else kind(text)
        else:
            known = " ".join([*dims, *options])
            raise ValueError(f"case {case.name!r} has no {name!r}; it has {known}")
    changed = ",".join(f"{k}={v}" for k, v in settings.items())
    name = f"{case.name}[{changed}]" if settings else case.name
    return replace(case, name=name, dims=dims, options=options)
