"""What must hold in a spec before anything is compiled from it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from sparsekit.errors import SpecError, UsageError
from sparsekit.model.kernel import ELEMENT_BYTES, Kernel, Variant, passed_args
from sparsekit.model.op import TAGS, Op

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STRIDE = re.compile(r"(?P<tensor>\w+)\.stride\((?P<axis>\d+)\)")
_TRITON_SETTINGS = ("num_warps", "num_stages")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.\-]*")


def validate_kernel(kernel: Kernel) -> None:
    """Raise SpecError naming the first thing in the spec that does not hold together."""
    for problem in _kernel_problems(kernel):
        raise SpecError(f"{kernel.folder / 'spec.py'}: {problem}")


def validate_against_op(kernel: Kernel, op: Op) -> None:
    """Raise SpecError naming the first thing in the spec that is not the op's."""
    for problem in _stranger_problems(kernel, op):
        raise SpecError(f"{kernel.folder / 'spec.py'}: {problem}")


def validate_op(op: Op, file: Path) -> None:
    """Raise SpecError naming the first thing in the op that does not hold together."""
    for problem in _op_problems(op):
        raise SpecError(f"{file}: {problem}")


def _kernel_problems(kernel: Kernel) -> Iterable[str]:
    if kernel.lang not in ("cuda", "triton"):
        yield f"lang must be 'cuda' or 'triton', found {kernel.lang!r}"
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


def _target_problems(kernel: Kernel) -> Iterable[str]:
    try:
        if not kernel.archs:
            yield "targets is empty"
    except UsageError as error:
        yield f"targets: {error}"


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
        base = variant.same_bits_as
        if base is not None and (base == variant.name or kernel.variant(base) is None):
            yield f"variant {variant.name!r}: same_bits_as names no other variant: {base!r}"
        for name in variant.constants:
            if not _IDENTIFIER.fullmatch(name):
                yield f"variant {variant.name!r}: constant {name!r} is no identifier"
        own = {name.upper() for name in variant.constants}  # as macros they are upper case
        if len(own) != len(variant.constants):
            yield f"variant {variant.name!r}: two constants differ in case only"
        clash = own & {c.upper() for i in kernel.instances for c in i.constants}
        for name in sorted(clash):
            yield f"constant {name!r} is set by variant {variant.name!r} and by an instance"
        yield from _override_problems(kernel, variant)


def _override_problems(kernel: Kernel, variant: Variant) -> Iterable[str]:
    settable = {*variant.constants, *_TRITON_SETTINGS}
    known = {name for instance in kernel.instances for name in instance.constants}
    for override in variant.overrides:
        for name in override.constants:
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
            try:
                args = passed_args(entry, instance)
            except KeyError as error:
                yield f"{entry.name}: instance {instance.name!r} gives no element type for {error}"
                continue
            for arg in args:
                if arg.type.removeprefix("*") not in ELEMENT_BYTES:
                    yield f"{entry.name}: argument {arg.name} has unknown type {arg.type!r}"
                if arg.divisible_by < 1:
                    yield f"{entry.name}: argument {arg.name}: divisible_by must be positive"
    for instance in kernel.instances:
        everywhere = {a.name for e in kernel.entries for a in e.args}
        for promise in instance.assume:
            if promise.arg not in everywhere:
                yield f"instance {instance.name!r} promises something of unknown {promise.arg!r}"


def _stranger_problems(kernel: Kernel, op: Op) -> Iterable[str]:
    """Tensors, strides and facts that the op does not have."""
    tensors = {t.name: t for t in op.tensors}
    for entry in kernel.entries:
        for arg in entry.args:
            match = _STRIDE.fullmatch(arg.bound_to)
            if match and match["tensor"] not in tensors:
                yield f"{entry.name}: {arg.name}: {op.name} has no tensor {match['tensor']!r}"
            elif match and int(match["axis"]) >= len(tensors[match["tensor"]].shape):
                yield f"{entry.name}: {arg.name}: {op.name} has no {arg.bound_to}"
    dims = {size for t in op.tensors for size in t.shape if isinstance(size, str)}
    facts = dims | {s.name for s in op.scalars} | {f"has_{name}" for name in tensors}
    for instance in kernel.instances:
        for name in sorted(set(instance.dtypes) - set(tensors)):
            yield f"instance {instance.name!r}: {op.name} has no tensor {name!r}"
        for name in sorted(set(instance.constants) - facts):
            yield f"instance {instance.name!r}: {op.name} has no dim, scalar or has_X {name!r}"


def _op_problems(op: Op) -> Iterable[str]:
    yield from _name_problems("tensor", (t.name for t in op.tensors), _IDENTIFIER)
    yield from _name_problems("case", (c.name for c in op.cases), None)
    for case in op.cases:
        for tag in case.tags:
            if tag not in TAGS:
                yield f"case {case.name!r}: unknown tag {tag!r}; known are {', '.join(TAGS)}"
    braces = {t for o in op.outputs for t in o.dtypes if t.startswith("{")}
    scalars = {f"{{{s.name}}}" for s in op.scalars if s.type == "dtype"}
    for name in sorted(braces - scalars):
        yield f"output element type {name} names no dtype scalar"
