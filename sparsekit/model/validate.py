"""What must hold in a spec before anything is compiled from it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from keyword import iskeyword
from pathlib import Path

from sparsekit.errors import SpecError, UsageError
from sparsekit.model.arch import ALL_CAPABILITIES, format_capability
from sparsekit.model.fields import type_problems
from sparsekit.model.kernel import (
    ELEMENT_BYTES,
    TENSOR_TYPES,
    Arg,
    Entry,
    Instance,
    Kernel,
    Launch,
    Scratch,
    Variant,
    accepts_all,
    passed_args,
)
from sparsekit.model.op import RETURN_PREFIX, TAGS, Op, Tensor
from sparsekit.model.tensor_map import map_type

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STRIDE = re.compile(r"(?P<tensor>\w+)\.stride\((?P<axis>\d+)\)")
_ARG_TYPE = re.compile(r"\*?(\w+|\{\w+\})")
_TRITON_SETTINGS = ("num_warps", "num_stages")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.\-]*")
_ELSEWHERE = re.compile(r"(cu|triton)/\w+:[a-z0-9][a-z0-9_.\-]*")  # a variant of another kernel


def validate_kernel(kernel: Kernel) -> None:
    """Raise SpecError naming the first thing in the spec that does not hold together."""
    for problem in _kernel_problems(replace(kernel, name="")):
        raise SpecError(f"{kernel.spec_file}: {problem}")


def validate_against_op(kernel: Kernel, op: Op) -> None:
    """Raise SpecError naming the first thing in the spec that is not the op's."""
    for problem in _stranger_problems(kernel, op):
        raise SpecError(f"{kernel.spec_file}: {problem}")


def validate_op(op: Op, file: Path) -> None:
    """Raise SpecError naming the first thing in the op that does not hold together."""
    for problem in _op_problems(replace(op, name="")):
        raise SpecError(f"{file}: {problem}")


def _kernel_problems(kernel: Kernel) -> Iterable[str]:
    yield from type_problems(kernel, Kernel)  # what follows relies on them
    if not (kernel.folder / kernel.source).is_file():
        yield f"source {kernel.source!r} does not exist"
    if Path(kernel.source).is_absolute() or ".." in Path(kernel.source).parts:
        yield f"source {kernel.source!r} must lie inside the folder"
    yield from _target_problems(kernel)
    yield from _name_problems("entry", (e.name for e in kernel.entries), _IDENTIFIER)
    yield from _name_problems("variant", (v.name for v in kernel.variants), _NAME)
    yield from _name_problems("instance", (i.name for i in kernel.instances), None)
    yield from _variant_problems(kernel)
    yield from _argument_problems(kernel)
    if kernel.made_for and kernel.reject is accepts_all:
        yield f"made_for={kernel.made_for!r}, but there is no reject() that refuses other calls"


def _target_problems(kernel: Kernel) -> Iterable[str]:
    try:
        if not kernel.archs:
            yield "targets is empty"
    except UsageError as error:
        yield f"targets: {error}"
    for name in kernel.proven_on or ():
        if name not in map(format_capability, ALL_CAPABILITIES):
            yield f"proven_on: expected compute capabilities such as '9.0', found {name!r}"


def _name_problems(what: str, names: Iterable[str], form: re.Pattern[str] | None) -> Iterable[str]:
    counted = Counter(names)
    if not counted:
        yield f"there is no {what}"
    for name, count in counted.items():
        if count > 1:
            yield f"{what} {name!r} stands {count} times"
        if form and not form.fullmatch(name):
            yield f"{what} name {name!r} does not match {form.pattern}"


def _variant_problems(kernel: Kernel) -> Iterable[str]:
    for variant in kernel.variants:
        if not _could_be_base(kernel, variant):
            base = variant.same_bits_as
            yield f"variant {variant.name!r}: same_bits_as names no other variant: {base!r}"
        for name in variant.constants:
            if not _IDENTIFIER.fullmatch(name):
                yield f"variant {variant.name!r}: constant {name!r} is no identifier"
        own = {name.upper() for name in variant.constants}  # as macros they are upper case
        if len(own) != len(variant.constants):
            yield f"variant {variant.name!r}: two constants differ in case only"
        for name in sorted(variant.launch.keys() & variant.constants.keys()):
            yield f"variant {variant.name!r}: {name!r} is a constant and of the launch"
        clash = own & {c.upper() for i in kernel.instances for c in i.constants}
        for name in sorted(clash):
            yield f"constant {name!r} is set by variant {variant.name!r} and by an instance"
        yield from _override_problems(kernel, variant)


def _could_be_base(kernel: Kernel, variant: Variant) -> bool:
    """Whether same_bits_as names another variant; that of another kernel is looked up when used."""
    base = variant.same_bits_as
    if base is None or _ELSEWHERE.fullmatch(base):
        return True
    return base != variant.name and kernel.variant(base) is not None


def _override_problems(kernel: Kernel, variant: Variant) -> Iterable[str]:
    settable = {*variant.constants, *_TRITON_SETTINGS}
    known = {name for instance in kernel.instances for name in instance.constants}
    for name in _TRITON_SETTINGS:
        if getattr(variant, name) < 1:
            yield f"variant {variant.name!r}: {name} must be positive"
    for override in variant.overrides:
        for name, value in override.constants.items():
            if name in _TRITON_SETTINGS and (type(value) is not int or value < 1):
                yield f"variant {variant.name!r}: an override sets {name} to {value!r}, no count"
            if name not in settable:
                yield f"variant {variant.name!r}: an override sets {name!r}, which it does not have"
        for name in override.instance:
            if name not in known:
                yield f"variant {variant.name!r}: an override is for {name!r}, of no instance"


def _argument_problems(kernel: Kernel) -> Iterable[str]:
    for entry in kernel.entries:
        yield from _name_problems(
            f"argument of {entry.name}", (a.name for a in entry.args), _IDENTIFIER
        )
        for instance in kernel.instances:
            for arg in entry.args:
                if arg.only_if and arg.only_if not in instance.constants:
                    yield f"{entry.name}: only_if={arg.only_if!r} of {arg.name} is in no instance"
            yield from _passed_problems(entry, instance)
    for instance in kernel.instances:
        everywhere = {a.name for e in kernel.entries for a in e.args}
        for promise in instance.assume:
            if promise.arg not in everywhere:
                yield f"instance {instance.name!r} promises something of unknown {promise.arg!r}"


def _passed_problems(entry: Entry, instance: Instance) -> Iterable[str]:
    for arg in entry.args:
        if arg.is_map and map_type(arg.type) is None:
            yield (
                f"{entry.name}: argument {arg.name}: expected tensormap(AXES; BOX; SWIZZLE), as "
                f"tensormap(1,0; 64,8; 128B), found {arg.type!r}"
            )
        elif not arg.is_map and not _ARG_TYPE.fullmatch(arg.type):
            yield f"{entry.name}: argument {arg.name} has unknown type {arg.type!r}"
        if ".stride(" in arg.bound_to and not _STRIDE.fullmatch(arg.bound_to):
            yield f"{entry.name}: {arg.name}: expected TENSOR.stride(AXIS), found {arg.bound_to!r}"
        if arg.divisible_by < 1:
            yield f"{entry.name}: argument {arg.name}: divisible_by must be positive"
    try:
        args = passed_args(entry, instance)
    except KeyError as error:
        yield f"{entry.name}: instance {instance.name!r} gives no element type for {error}"
        return
    for arg in args:
        if not arg.is_map and arg.type.removeprefix("*") not in ELEMENT_BYTES:
            yield f"{entry.name}: argument {arg.name} has unknown type {arg.type!r}"


def launch_problems(kernel: Kernel, launches: tuple[Launch, ...]) -> Iterable[str]:
    """What in the launches of a call is not the kernel's, or contradicts itself."""
    if not launches:
        yield "launches() gives none, and the outputs would never be written"
    entries = {e.name for e in kernel.entries}
    scratch: dict[str, Scratch] = {}
    for launch in launches:
        if launch.entry not in entries:
            known = ", ".join(sorted(entries))
            yield f"launches() names the entry {launch.entry!r}; the kernel has {known}"
        for buffer in launch.scratch:
            if buffer.dtype not in TENSOR_TYPES:
                yield f"scratch {buffer.name!r} has unknown element type {buffer.dtype!r}"
            if any(size < 0 for size in buffer.shape):
                yield f"scratch {buffer.name!r} has a negative size: {buffer.shape}"
            if scratch.setdefault(buffer.name, buffer) != buffer:
                yield f"scratch {buffer.name!r} differs between the launches that share it"


def _stranger_problems(kernel: Kernel, op: Op) -> Iterable[str]:
    """Tensors, strides and facts that the op does not have."""
    tensors = {t.name: t for t in op.tensors}
    for entry in kernel.entries:
        for arg in entry.args:
            match = _STRIDE.fullmatch(arg.bound_to)
            if arg.is_map:
                yield from _map_strangers(entry, arg, tensors, op)
            if match and match["tensor"] not in tensors:
                yield f"{entry.name}: {arg.name}: {op.name} has no tensor {match['tensor']!r}"
            elif match and int(match["axis"]) >= len(tensors[match["tensor"]].shape):
                yield f"{entry.name}: {arg.name}: {op.name} has no {arg.bound_to}"
    dims = {size for t in op.tensors for size in t.shape if isinstance(size, str)}
    facts = dims | {s.name for s in op.scalars} | {f"has_{name}" for name in tensors}
    for instance in kernel.instances:
        for name, dtype in instance.dtypes.items():
            if name not in tensors:
                yield f"instance {instance.name!r}: {op.name} has no tensor {name!r}"
            elif dtype not in _dtypes_of(tensors[name]):
                known = ", ".join(sorted(_dtypes_of(tensors[name])))
                yield f"instance {instance.name!r}: {name} of {op.name} is {known}, never {dtype!r}"
        for name in sorted(set(instance.constants) - facts):
            yield f"instance {instance.name!r}: {op.name} has no dim, scalar or has_X {name!r}"


def _map_strangers(entry: Entry, arg: Arg, tensors: Mapping[str, Tensor], op: Op) -> Iterable[str]:
    kind, tensor = map_type(arg.type), tensors.get(arg.bound_to)
    if tensor is None:
        yield f"{entry.name}: {arg.name}: {op.name} has no tensor {arg.bound_to!r}"
    elif kind is not None and max(kind.axes) >= len(tensor.shape):
        yield f"{entry.name}: {arg.name}: {arg.bound_to} has no axis {max(kind.axes)}"


def _dtypes_of(tensor: Tensor) -> frozenset[str]:
    """The element types that it may have; any where a scalar says which."""
    if any(t.startswith("{") for t in tensor.dtypes):
        return TENSOR_TYPES
    return frozenset(tensor.dtypes)


def _op_problems(op: Op) -> Iterable[str]:
    yield from type_problems(op, Op)  # what follows relies on them
    on_demand = (f"{RETURN_PREFIX}{o.name}" for o in op.outputs if o.optional)
    names = [*(i.name for i in op.inputs), *(o.name for o in op.outputs), *on_demand]
    yield from _name_problems("argument", names, _IDENTIFIER)
    for name in filter(iskeyword, names):
        yield f"argument {name!r} is a word of Python, and could not be given by name"
    yield from _tensor_problems(op)
    if not op.probes:
        yield "probes is empty"
    if op.batch and op.batch not in {size for t in op.tensors for size in t.shape}:
        yield f"batch {op.batch!r} is a dim of no tensor"
    yield from _name_problems("case", (c.name for c in op.cases), None)
    for case in op.cases:
        for tag in case.tags:
            if tag not in TAGS:
                yield f"case {case.name!r}: unknown tag {tag!r}; known are {', '.join(TAGS)}"
        for name in sorted(set(case.emulated) - set(case.dims)):
            yield f"case {case.name!r}: emulated sets {name!r}, which is no dim of it"
        for name, values in op.known_values.items():
            if name in case.options and case.options[name] not in values:
                found = case.options[name]
                yield f"case {case.name!r}: {name} is {found!r}, none of known_values {values}"


def _tensor_problems(op: Op) -> Iterable[str]:
    if not any(not o.optional for o in op.outputs):
        yield "there is no output that is always made"
    given = [i for i in op.inputs if isinstance(i, Tensor) and not i.optional]
    dims = {size for t in given for size in t.shape} | {s.name for s in op.scalars}
    for tensor in op.tensors:
        for dtype in tensor.dtypes:
            if dtype not in TENSOR_TYPES and not (tensor in op.outputs and dtype.startswith("{")):
                yield f"tensor {tensor.name!r} has unknown element type {dtype!r}"
        if not tensor.dtypes:
            yield f"tensor {tensor.name!r} has no element type"
        for what in ("divisible_by", "stride_divisible_by"):
            if getattr(tensor, what) < 1:
                yield f"tensor {tensor.name!r}: {what} must be positive"
    for output in op.outputs:
        if len(output.dtypes) > 1:
            yield f"output {output.name!r} must have one element type, or a scalar's in braces"
        for size in output.shape:
            if isinstance(size, str) and size not in dims:
                yield f"output {output.name!r}: no required input has the dim {size!r}"
    braces = {t for o in op.outputs for t in o.dtypes if t.startswith("{")}
    scalars = {f"{{{s.name}}}" for s in op.scalars if s.type == "dtype"}
    for name in sorted(braces - scalars):
        yield f"output element type {name} names no dtype scalar"
