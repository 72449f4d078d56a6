"""From a call's arguments to a checked `Call`: the generic part of every operator.

Errors name the argument, what was found and what is wanted; nothing is launched before they are
raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsekit.errors import ArgumentError, ArgumentTypeError
from sparsekit.model.call import Call, Device, ScalarValue
from sparsekit.model.op import REQUIRED, RETURN_PREFIX, Op, Scalar, Tensor
from sparsekit.runtime import tensors as torch_tensors
from sparsekit.spec_file import ask


@dataclass(frozen=True)
class Arguments:
    """A call's arguments by name. outputs: those asked for; given: those the caller brought."""

    inputs: Mapping[str, Any]
    scalars: Mapping[str, ScalarValue]
    outputs: tuple[str, ...]
    given: Mapping[str, Any]


def bind(op: Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments by name, as Python would bind them. Raises ArgumentTypeError as it would."""
    names = [i.name for i in op.inputs]
    if len(args) > len(names):
        raise ArgumentTypeError(f"{op.name} takes {len(names)} arguments, found {len(args)}")
    values = dict(zip(names, args, strict=False))
    optional = {f"{RETURN_PREFIX}{o.name}": o.name for o in op.outputs if o.optional}
    out_names = {o.name for o in op.outputs}
    wanted, given = {o.name for o in op.outputs if not o.optional}, {}
    for name, value in kwargs.items():
        if name in values:
            raise ArgumentTypeError(f"{op.name}: argument {name!r} was given twice")
        if name in names:
            values[name] = value
        elif name in optional:
            wanted |= {optional[name]} if value else set()
        elif name in out_names:
            if value is not None:
                given[name] = _tensor(op, name, value)
                wanted.add(name)
        else:
            takes = ", ".join([*names, *optional, *out_names])
            raise ArgumentTypeError(f"{op.name}: unknown argument {name!r}; it takes {takes}")
    scalars = {s.name: _scalar(op, s, values.pop(s.name, s.default)) for s in op.scalars}
    inputs = {t.name: _input(op, t, values) for t in op.inputs if isinstance(t, Tensor)}
    return Arguments(inputs, scalars, tuple(o.name for o in op.outputs if o.name in wanted), given)


def _input(op: Op, tensor: Tensor, values: Mapping[str, Any]) -> Any:
    value = values.get(tensor.name)
    if value is None:
        if tensor.optional:
            return None
        raise ArgumentTypeError(f"{op.name}: argument {tensor.name!r} is missing")
    return _tensor(op, tensor.name, value)


def _tensor(op: Op, name: str, value: Any) -> Any:
    if not torch_tensors.is_tensor(value):
        raise ArgumentTypeError(f"{op.name}: {name} must be a tensor, found {type(value).__name__}")
    return value


def _scalar(op: Op, scalar: Scalar, value: Any) -> ScalarValue:
    if value is REQUIRED:
        raise ArgumentTypeError(f"{op.name}: argument {scalar.name!r} is missing")
    if scalar.type == "dtype":
        name = torch_tensors.dtype_argument(value)
        if name is None:
            raise ArgumentTypeError(
                f"{op.name}: {scalar.name} must be an element type, found {value!r}"
            )
        return name
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(
            f"{op.name}: {scalar.name} must be a {scalar.type}, found {value!r}"
        )
    if scalar.type == "int" and not isinstance(value, int):
        raise ArgumentTypeError(f"{op.name}: {scalar.name} must be an int, found {value!r}")
    return float(value) if scalar.type == "float" else value


def checked_call(op: Op, arguments: Arguments, device: Device | None) -> Call:
    """The call's facts after every generic check and the op's own.

    Raises ArgumentTypeError for an element type, ArgumentError for shapes, strides and alignment.
    """
    present = {**arguments.inputs, **arguments.given}
    dims: dict[str, int] = {}
    for tensor in op.tensors:
        value = present.get(tensor.name)
        if value is not None:
            _check_dtype(op, tensor, value, arguments.scalars)
            _check_shape(op, tensor, tuple(value.shape), arguments.scalars, dims)
            _check_strides(op, tensor, value)
    call = Call(
        dims={**dims, **_dims_of_scalars(op, arguments.scalars)},
        scalars=arguments.scalars,
        device=device,
        **torch_tensors.facts(present),
    )
    if problem := ask(op.folder / "op.py", "check()", op.check, call, kind=str | None):
        raise ArgumentError(f"{op.name}: {problem}")
    return call


def output_dtype(tensor: Tensor, scalars: Mapping[str, ScalarValue]) -> str:
    """The element type of an output; `{out_dtype}` stands for a scalar's value."""
    (dtype,) = tensor.dtypes
    return str(scalars[dtype[1:-1]]) if dtype.startswith("{") else dtype


def shape_of(tensor: Tensor, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else dims[size] for size in tensor.shape)


def _dims_of_scalars(op: Op, scalars: Mapping[str, ScalarValue]) -> dict[str, int]:
    """Integer scalars that stand as a dim in some shape."""
    in_shapes = {size for t in op.tensors for size in t.shape if isinstance(size, str)}
    return {n: v for n, v in scalars.items() if n in in_shapes and isinstance(v, int)}


def _check_dtype(op: Op, tensor: Tensor, value: Any, scalars: Mapping[str, ScalarValue]) -> None:
    wanted = (output_dtype(tensor, scalars),) if tensor in op.outputs else tensor.dtypes
    found = torch_tensors.dtype_name(value.dtype)
    if found not in wanted:
        raise ArgumentTypeError(
            f"{op.name}: {tensor.name} must be {' or '.join(wanted)}, found {found}"
        )


def _check_shape(
    op: Op, tensor: Tensor, shape: tuple[int, ...], scalars: Mapping[str, ScalarValue],
    dims: dict[str, int],
) -> None:  # fmt: skip
    wanted = tensor.shape_text
    if len(shape) != len(tensor.shape):
        raise ArgumentError(f"{op.name}: {tensor.name} must be {wanted}, found shape {list(shape)}")
    for size, found in zip(tensor.shape, shape, strict=True):
        known = size if isinstance(size, int) else scalars.get(size, dims.get(size))
        if known is None:
            dims[str(size)] = found
        elif known != found:
            raise ArgumentError(
                f"{op.name}: {tensor.name} must be {wanted} with {size} = {known}, "
                f"found shape {list(shape)}"
            )


def _check_strides(op: Op, tensor: Tensor, value: Any) -> None:
    shape, strides = tuple(value.shape), tuple(value.stride())
    if not shape or 0 in shape:
        return
    if shape[-1] > 1 and strides[-1] != 1:
        raise ArgumentError(
            f"{op.name}: the last dimension of {tensor.name} must have stride 1, found strides "
            f"{list(strides)}; call .contiguous() on it"
        )
    for size, stride in zip(shape[:-1], strides[:-1], strict=True):
        if size > 1 and stride % tensor.stride_divisible_by:
            raise ArgumentError(
                f"{op.name}: the strides of {tensor.name} must be multiples of "
                f"{tensor.stride_divisible_by} elements, found {list(strides)}"
            )
    address = torch_tensors.address(value)
    if address % tensor.divisible_by:
        raise ArgumentError(
            f"{op.name}: {tensor.name} must lie at a multiple of {tensor.divisible_by} bytes, "
            f"found address {address:#x}"
        )
