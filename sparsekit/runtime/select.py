"""Choosing what runs a call: kernel, variant, target and instance, each with its reason.

Pure: it looks at facts of the call, never at tensors or the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsekit.errors import SpecError
from sparsekit.model.arch import Arch, format_capability
from sparsekit.model.call import Call, packed_strides
from sparsekit.model.kernel import (
    ELEMENT_BYTES,
    Arg,
    Entry,
    Instance,
    Kernel,
    Launch,
    Promise,
    Variant,
    passed_args,
)
from sparsekit.model.tensor_map import map_problem, map_type
from sparsekit.model.validate import launch_problems
from sparsekit.spec_file import ask


@dataclass(frozen=True)
class Candidate:
    """One way to run a call; `launches` as the spec gives them for it."""

    kernel: Kernel
    variant: Variant
    arch: Arch
    instance: Instance
    launches: tuple[Launch, ...]

    def __str__(self) -> str:
        return f"{self.kernel.name}:{self.variant.name} [{self.instance.name}] {self.arch}"


@dataclass(frozen=True)
class Decision:
    """What was considered, and why it was taken or passed over."""

    subject: str
    taken: bool
    reason: str
    candidate: Candidate | None = None


@dataclass(frozen=True)
class Turn:
    """A kernel that is asked, with the names of the variants that may be taken.

    preferred: why it is asked before the kernels that would else go first; None where it is not.
    """

    kernel: Kernel
    names: Sequence[str]
    preferred: str | None = None


def turns(
    kernels: Sequence[tuple[Kernel, Sequence[str]]], call: Call, *, batch_invariant: bool = True
) -> list[Turn]:
    """The kernels in the order in which they are asked: as given, which no batch changes.

    batch_invariant: False puts first those that prefer the call, which may look at its batch.
    """
    if batch_invariant:
        return [Turn(kernel, names) for kernel, names in kernels]
    found = [Turn(kernel, names, _preference(kernel, call)) for kernel, names in kernels]
    return sorted(found, key=lambda turn: turn.preferred is None)


def _preference(kernel: Kernel, call: Call) -> str | None:
    reason: str | None = ask(kernel.spec_file, "prefer()", kernel.prefer, call, kind=str | None)
    return reason or None


def decide(
    kernels: Sequence[tuple[Kernel, Sequence[str]]], call: Call, *, batch_invariant: bool = True
) -> Iterable[Decision]:
    """Every decision in order of preference: kernels by their turn, then variants, then instances.

    kernels: with the names of the variants that may be taken. call.device must be known.
    batch_invariant: whether the choice may not look at the batch.
    """
    assert call.device is not None, "a choice looks at the device"
    device = call.device.compute_capability
    for turn in turns(kernels, call, batch_invariant=batch_invariant):
        kernel = turn.kernel
        archs = kernel.targets_for(device)
        only = call.device.only
        if only is not None:
            archs = tuple(a for a in archs if a == only)
        if not archs:
            place = only or format_capability(device)
            reason = f"no target of {' '.join(kernel.targets)} runs on {place}"
            yield Decision(kernel.name, False, reason)
        told: set[tuple[str, str]] = set()
        for arch in archs:
            for name in turn.names:
                yield from _decide_variant(turn, name, arch, call, told)


def _decide_variant(
    turn: Turn, name: str, arch: Arch, call: Call, told: set[tuple[str, str]]
) -> Iterable[Decision]:
    """told: variants with reasons that were given already, for another target or instance."""
    kernel = turn.kernel
    for instance in kernel.instances:
        variant = kernel.variant_at(name, arch, instance)
        if reason := _rejection(kernel, variant, call):
            if (name, reason) not in told:
                yield Decision(f"{kernel.name}:{name}", False, reason)
            told.add((name, reason))
            continue
        if reason := _other_instance(instance, call):
            yield Decision(f"{kernel.name}:{name} [{instance.name}] {arch}", False, reason)
            continue
        launches = _launches(kernel, variant, call)
        candidate = Candidate(kernel, variant, arch, instance, launches)
        misfitting = _misfit(candidate, call)
        reason = misfitting or _fitting(turn)
        yield Decision(str(candidate), misfitting is None, reason, candidate)


def _fitting(turn: Turn) -> str:
    """Why a kernel that can take the call does, where others could too."""
    if turn.preferred:
        return f"fits; {turn.preferred}, and the choice may look at the batch"
    if not turn.kernel.made_for:
        return "fits"
    return f"fits; made for {turn.kernel.made_for}, it goes before kernels that take more"


def _rejection(kernel: Kernel, variant: Variant, call: Call) -> str | None:
    what = f"reject() of {variant.name!r}"
    reason: str | None = ask(kernel.spec_file, what, kernel.reject, variant, call, kind=str | None)
    return reason


def _launches(kernel: Kernel, variant: Variant, call: Call) -> tuple[Launch, ...]:
    what, kind = f"launches() of {variant.name!r}", tuple[Launch, ...]
    launches: tuple[Launch, ...] = ask(
        kernel.spec_file, what, kernel.launches, variant, call, kind=kind
    )
    for problem in launch_problems(kernel, launches):
        raise SpecError(f"{kernel.spec_file}: {problem}")
    return launches


def _misfit(candidate: Candidate, call: Call) -> str | None:
    """Why the instance cannot serve the call by its strides and promises; None when it can."""
    instance = candidate.instance
    for launch in candidate.launches:
        entry = candidate.kernel.entry(launch.entry)
        args = passed_args(entry, instance)
        if reason := _other_type(entry, args, call) or _fixed_stride(args, call):
            return reason
        if reason := _no_map(args, call):
            return reason
        if reason := _broken_promise(candidate.kernel, instance, launch, call):
            return reason
    return None


def _other_instance(instance: Instance, call: Call) -> str | None:
    """Why the instance is for other element types or sizes than the call's."""
    for tensor, dtype in instance.dtypes.items():
        if call.dtypes.get(tensor) != dtype:
            return f"it is compiled for {tensor} in {dtype}, found {call.dtypes.get(tensor)}"
    for name, value in instance.constants.items():
        if call.fact(name) != value:
            return f"it is compiled for {name} = {value}, found {call.fact(name)}"
    return None


def _other_type(entry: Entry, args: Sequence[Arg], call: Call) -> str | None:
    """A pointer to elements of another type than the tensor's."""
    for arg in args:
        found, taken = call.dtypes.get(arg.bound_to), arg.type.removeprefix("*")
        if arg.is_pointer and found is not None and found != taken:
            return f"{entry.name} takes {arg.bound_to} in {taken}, found {found}"
    return None


def _fixed_stride(args: Sequence[Arg], call: Call) -> str | None:
    """A stride that an entry is not told can only be the packed one."""
    told = {a.bound_to for a in args}
    for tensor in (a.bound_to for a in args if a.is_pointer and a.bound_to in call.shapes):
        shape, strides = call.shapes[tensor], call.strides[tensor]
        for axis, packed in enumerate(packed_strides(shape)):
            free = shape[axis] == 1 or 0 in shape or f"{tensor}.stride({axis})" in told
            if not free and strides[axis] != packed:
                return (
                    f"it takes {tensor} with stride({axis}) = {packed} only, found "
                    f"{strides[axis]}; call .contiguous() on it"
                )
    return None


def _no_map(args: Sequence[Arg], call: Call) -> str | None:
    """A tensor that cannot be seen as an entry's tensor map has it."""
    for arg in args:
        kind = map_type(arg.type) if arg.is_map else None
        if kind is not None and arg.bound_to in call.shapes:
            size = ELEMENT_BYTES[call.dtypes[arg.bound_to]]
            if reason := map_problem(kind, call, arg.bound_to, size):
                return reason
    return None


def _broken_promise(kernel: Kernel, instance: Instance, launch: Launch, call: Call) -> str | None:
    entry = kernel.entry(launch.entry)
    args = {a.name: a for a in passed_args(entry, instance)}
    for promise in kernel.promises(entry, instance):
        arg = args[promise.arg]
        value = _known_value(kernel, arg, launch, call)
        if value is not None and value % promise.divisible_by:
            return broken_promise_text(arg, promise, value)
    return None


def _known_value(kernel: Kernel, arg: Arg, launch: Launch, call: Call) -> int | None:
    """An integer's value, or what is known of an address: the power of two that divides it."""
    if arg.is_tensor:
        return call.alignments.get(arg.bound_to)  # absent: null, or scratch of our own
    value = argument_number(kernel, arg, launch, call)
    return value if isinstance(value, int) else None


def argument_number(kernel: Kernel, arg: Arg, launch: Launch, call: Call) -> int | float:
    """The value of a scalar argument. Raises SpecError when its source names nothing."""
    if arg.bound_to in launch.values:
        return launch.values[arg.bound_to]
    value = call.number(arg.bound_to)
    if value is None:
        raise SpecError(
            f"{kernel.spec_file}: {launch.entry}: argument {arg.name}: {arg.bound_to!r} is no dim, "
            "scalar, stride or launch value"
        )
    return value


def broken_promise_text(arg: Arg, promise: Promise, value: int) -> str:
    """One sentence: what was promised of which argument, and what was found."""
    if arg.is_tensor:
        return (
            f"it assumes {arg.bound_to} at a multiple of {promise.divisible_by} bytes, "
            f"found an address divisible by {value & -value if value else 0} only"
        )
    return f"it assumes {arg.bound_to} to be a multiple of {promise.divisible_by}, found {value}"
