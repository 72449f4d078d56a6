"""What an op takes and gives, what may be set in its cases, and its cases."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from sparsekit.model.op import REQUIRED, Case, Op, Scalar, Tensor
from sparsekit.report.document import Lines, Table


def op_parts(op: Op) -> list[Table | Lines]:
    """The op for people: a summary, then arguments, settings and cases as tables."""
    return [
        Lines((op.summary,), op.name),
        Table("Arguments", ("argument", "role", "type", "shape", "must be"), _arguments(op)),
        Table("What run --set takes", ("name", "mostly", "takes"), _settings(op)),
        _cases(op),
    ]


def op_data(op: Op) -> dict[str, Any]:
    return {
        "op": op.name,
        "summary": op.summary,
        "inputs": [_input_data(i) for i in op.inputs],
        "outputs": [_tensor_data(o) for o in op.outputs],
        "probes": list(op.probes),
        "known_values": {name: list(values) for name, values in op.known_values.items()},
        "cases": [
            {
                "name": c.name, "tags": list(c.tags), "dims": dict(c.dims),
                "options": {n: _plain(v) for n, v in c.options.items()},
                "emulated": dict(c.emulated),
            }
            for c in op.cases
        ],
    }  # fmt: skip


def _input_data(argument: Tensor | Scalar) -> dict[str, Any]:
    if isinstance(argument, Tensor):
        return _tensor_data(argument)
    default = {} if argument.default is REQUIRED else {"default": _plain(argument.default)}
    return {"name": argument.name, "kind": "scalar", "type": argument.type, **default}


def _tensor_data(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "kind": "tensor",
        "dtypes": list(tensor.dtypes),
        "shape": list(tensor.shape),
        "optional": tensor.optional,
        "divisible_by": tensor.divisible_by,
        "stride_divisible_by": tensor.stride_divisible_by,
    }


def _plain(value: object) -> object:
    """The value where JSON has it, else its text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)


def _arguments(op: Op) -> list[tuple[str | None, ...]]:
    rows: list[tuple[str | None, ...]] = []
    for argument in (*op.inputs, *op.outputs):
        if isinstance(argument, Scalar):
            required = argument.default is REQUIRED
            role = "input" if required else f"input, {argument.default} if not given"
            rows.append((argument.name, role, argument.type, "scalar", None))
            continue
        role = "output" if argument in op.outputs else "input"
        if argument.optional:
            role += f", with return_{argument.name}" if role == "output" else " or None"
        types, layout = " ".join(argument.dtypes), argument.layout_text or None
        rows.append((argument.name, role, types, argument.shape_text, layout))
    return rows


def _settings(op: Op) -> list[tuple[str, str, str]]:
    dims = dict.fromkeys(name for case in op.cases for name in case.dims)
    usual = _usual(op)
    return [
        *((name, "", "a size") for name in dims),
        *((name, _spelt(value), _taken(op, name, value)) for name, value in usual.items()),
    ]


def _taken(op: Op, name: str, value: object) -> str:
    if name in op.known_values:
        return " ".join(map(str, op.known_values[name]))
    if isinstance(value, bool):
        return "true false"
    kinds = {int: "a size", float: "a number", str: "a word"}
    return kinds.get(type(value), f"a {type(value).__name__}, not to be set")


def _usual(op: Op) -> dict[str, Any]:
    """Of each option of the cases, the value that most of them have."""
    values: dict[str, list[Any]] = {}
    for case in op.cases:
        for name, value in case.options.items():
            values.setdefault(name, []).append(value)
    spelt = {
        name: Counter(map(_spelt, found)).most_common(1)[0][0] for name, found in values.items()
    }
    return {n: next(v for v in found if _spelt(v) == spelt[n]) for n, found in values.items()}


def _cases(op: Op) -> Table:
    dims = tuple(dict.fromkeys(name for case in op.cases for name in case.dims))
    usual = _usual(op)
    rows = [
        (case.name, " ".join(case.tags), *(case.dims.get(d) for d in dims), _special(case, usual))
        for case in op.cases
    ]
    return Table("Cases", ("case", "tags", *dims, "and"), rows, frozenset(dims))


def _special(case: Case, usual: dict[str, Any]) -> str:
    """The options in which the case is not as most are."""
    changed = {n: v for n, v in case.options.items() if _spelt(v) != _spelt(usual[n])}
    return " ".join(f"{name}={_spelt(value)}" for name, value in changed.items())


def _spelt(value: object) -> str:
    """As `--set` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
