"""An operator as its `op.py` describes it: what is computed, on what, and how it is exercised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from sparsekit.model.call import Call
from sparsekit.model.kernel import TENSOR_TYPES

N = TypeVar("N", int, float)
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
RETURN_PREFIX = "return_"  # of the argument that asks for an optional output
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

    @property
    def shape_text(self) -> str:
        """`[s_q, h_q, 512]`, as people read it."""
        return f"[{', '.join(map(str, self.shape))}]"

    @property
    def layout_text(self) -> str:
        """What must hold of address and strides, as people read it; empty for nothing."""
        wanted = []
        if self.divisible_by > 1:
            wanted.append(f"at a multiple of {self.divisible_by} bytes")
        if self.stride_divisible_by > 1:
            wanted.append(f"strides in multiples of {self.stride_divisible_by} elements")
        return ", ".join(wanted)


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
    """One workload: sizes by name, layout options by name, tags, and the seed of its data.

    emulated: sizes that take the place of some where the case runs in the emulator, which is slow.
    """

    name: str
    dims: Mapping[str, int]
    tags: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    emulated: Mapping[str, int] = field(default_factory=dict)

    def with_emulated(self, **dims: int) -> Case:
        """The case with these sizes in the emulator."""
        return replace(self, emulated=dims)

    def for_emulator(self) -> Case:
        """The case in the size that the emulator takes."""
        if not self.emulated:
            return self
        changed = ",".join(f"{k}={v}" for k, v in self.emulated.items())
        dims = {**self.dims, **self.emulated}
        return replace(self, name=f"{self.name}[{changed}]", dims=dims, emulated={})


@dataclass(frozen=True)
class Op:
    """An operator.

    inputs: in the order of the callable's parameters. outputs: in the order of its results.
    check(call): what is wrong with a call whose tensors fit, else None. check_case(case): what is
    wrong with a case before its data is made, else None. known_values: of the options of cases that
    take one of a few. probes: the data sets that `verify` runs each case with; the first is the
    case's own. work(case): FLOP and bytes. batch: the dim along which rows must not influence each
    other's bits; empty when there is none. name and folder are filled in when the folder is found;
    reference.py lies beside op.py.
    """

    summary: str
    inputs: tuple[Tensor | Scalar, ...]
    outputs: tuple[Tensor, ...]
    cases: tuple[Case, ...]
    work: Callable[[Case], Work]
    check: Callable[[Call], str | None] = lambda call: None
    check_case: Callable[[Case], str | None] = lambda case: None
    known_values: Mapping[str, tuple[str | int | float | bool, ...]] = field(default_factory=dict)
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


def with_settings(op: Op, case: Case, settings: Mapping[str, str]) -> Case:
    """The case with `--set NAME=VALUE` applied: dims take sizes, options their own type.

    Raises ValueError naming the option, what was found and what it takes.
    """
    dims, options = dict(case.dims), dict(case.options)
    for name, text in settings.items():
        if name in dims:
            dims[name] = _size(name, text)
        elif name in options:
            options[name] = _option(op, name, text, options[name])
        else:
            known = " ".join([*dims, *options])
            raise ValueError(f"--set {name}={text}: case {case.name!r} has {known}")
    changed = ",".join(f"{k}={v}" for k, v in settings.items())
    name = f"{case.name}[{changed}]" if settings else case.name
    return replace(case, name=name, dims=dims, options=options)


def check_scalars(op: Op, settings: Mapping[str, str]) -> None:
    """Raise ValueError for a `--set` that gives no scalar of the op, or not of its type."""
    types = {s.name: s.type for s in op.scalars}
    for name, text in settings.items():
        if name not in types:
            takes = ", ".join(types) or "none"
            raise ValueError(f"--set {name}={text}: the scalars of {op.name} are {takes}")
        if types[name] != "dtype":
            _number(name, text, int if types[name] == "int" else float)
        elif text not in TENSOR_TYPES:
            raise ValueError(
                f"--set {name}={text}: expected one of {', '.join(sorted(TENSOR_TYPES))}"
            )


def _option(op: Op, name: str, text: str, present: object) -> object:
    if isinstance(present, bool):
        value: object = _BOOLEANS.get(text.lower())
        if value is None:
            raise ValueError(f"--set {name}={text}: expected one of {', '.join(_BOOLEANS)}")
    elif isinstance(present, int):
        value = _size(name, text)
    elif isinstance(present, float):
        value = _number(name, text, float)
    elif isinstance(present, str):
        value = text
    else:
        raise ValueError(f"--set {name}={text}: it is a {type(present).__name__}, not to be set")
    known = op.known_values.get(name)
    if known is not None and value not in known:
        raise ValueError(f"--set {name}={text}: expected one of {', '.join(map(str, known))}")
    return value


def _size(name: str, text: str) -> int:
    size = _number(name, text, int)
    if size < 0:
        raise ValueError(f"--set {name}={text}: expected 0 or more")
    return size


def _number(name: str, text: str, kind: type[N]) -> N:
    try:
        return kind(text)
    except ValueError:
        wanted = "an integer" if kind is int else "a number"
        raise ValueError(f"--set {name}={text}: expected {wanted}") from None
