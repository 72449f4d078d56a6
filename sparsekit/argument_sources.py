"""Whether something feeds every argument of a kernel, before its first call.

Tensors, dims and scalars are the op's; what is neither must come from launches(), which is asked of
the op's cases: of calls that the op takes, so that what they lack the user's calls would lack.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

from sparsekit.errors import SpecError
from sparsekit.model.call import Call, Device, ScalarValue, packed_strides
from sparsekit.model.kernel import Arg, Instance, Kernel, Launch, Variant, passed_args
from sparsekit.model.op import REQUIRED, Case, Op, Scalar, Tensor
from sparsekit.spec_file import ask

_ANY_SM_COUNT = 132
_ANY_ALIGNMENT_BYTES = 256
_ALIKE = 0.5  # of difflib's ratio: `kv_in` is like `kv`


def check_argument_sources(kernel: Kernel, op: Op) -> None:
    """Raise SpecError naming the first argument that nothing feeds, and what there is to name.

    An entry that no case of the op launches is left to the call that does.
    """
    unknown = _unknown(kernel, op)
    if not unknown:
        return
    for launch, instance in _launches(kernel, op):
        passed = {a.name for a in passed_args(kernel.entry(launch.entry), instance)}
        for arg in [a for a in unknown.get(launch.entry, ()) if a.name in passed]:
            own = {s.name for s in launch.scratch} if arg.is_tensor else launch.values
            if arg.bound_to not in own:
                raise SpecError(
                    f"{kernel.spec_file}: {launch.entry}: argument {arg.name}: "
                    f"{_told(arg, op, own)}"
                )
            unknown[launch.entry].remove(arg)
        if not any(unknown.values()):
            return


def _unknown(kernel: Kernel, op: Op) -> dict[str, list[Arg]]:
    """By entry, the arguments whose source the op does not have."""
    tensors, numbers = set(_tensors(op)), {*_dims(op.tensors), *_scalars(op)}
    found = {
        entry.name: [
            arg
            for arg in entry.args
            if arg.bound_to not in (tensors if arg.is_tensor else numbers)
            and ".stride(" not in arg.bound_to
        ]
        for entry in kernel.entries
    }
    return {entry: args for entry, args in found.items() if args}


def _told(arg: Arg, op: Op, own: Iterable[str]) -> str:
    if arg.is_tensor:
        wanted, known = "tensor or scratch", {"tensors": _tensors(op), "scratch": [*own]}
    else:
        wanted = "dim, scalar, stride or launch value"
        known = {"dims": _dims(op.tensors), "scalars": _scalars(op), "launch values": [*own]}
    names = {name.lower(): name for group in known.values() for name in group}
    close = difflib.get_close_matches(arg.bound_to.lower(), names, 1, cutoff=_ALIKE)
    hint = f" (did you mean {names[close[0]]!r}?)" if close else ""
    there = "; ".join(f"{what} {', '.join(group)}" for what, group in known.items() if group)
    return f"{arg.bound_to!r} is no {wanted}{hint}; {op.name} has the {there}"


def _tensors(op: Op) -> list[str]:
    return [t.name for t in op.tensors]


def _dims(tensors: Iterable[Tensor]) -> list[str]:
    return list(dict.fromkeys(s for t in tensors for s in t.shape if isinstance(s, str)))


def _scalars(op: Op) -> list[str]:
    """Those that are numbers, so that a kernel can be passed them."""
    return [s.name for s in op.scalars if s.type != "dtype"]


def _launches(kernel: Kernel, op: Op) -> Iterator[tuple[Launch, Instance]]:
    """What the kernel launches for the cases that it takes; what goes wrong is left to the call."""
    known = {entry.name for entry in kernel.entries}
    arch = kernel.archs[0]
    device = Device(arch.compute_capability, _ANY_SM_COUNT, arch.shared_bytes_optin)
    for instance, case in product(kernel.instances, op.cases):
        call = _call(op, case, instance, device)
        for named in kernel.variants:
            variant = kernel.variant_at(named.name, arch, instance)
            launches = _asked(kernel, variant, op, call) if call else ()
            yield from ((launch, instance) for launch in launches if launch.entry in known)


def _asked(kernel: Kernel, variant: Variant, op: Op, call: Call) -> tuple[Launch, ...]:
    """The launches of the call; none where op, variant or spec do not come to them."""
    with suppress(SpecError):
        return _launches_of(kernel, variant, op, call)
    return ()


def _launches_of(kernel: Kernel, variant: Variant, op: Op, call: Call) -> tuple[Launch, ...]:
    for file, function, args in (
        (op.folder / "op.py", op.check, (call,)),
        (kernel.spec_file, kernel.reject, (variant, call)),
    ):
        if ask(file, "a case", function, *args, kind=str | None) is not None:
            return ()
    launches: tuple[Launch, ...] = ask(
        kernel.spec_file, "a case", kernel.launches, variant, call, kind=tuple[Launch, ...]
    )
    return launches


def _call(op: Op, case: Case, instance: Instance, device: Device) -> Call | None:
    """A call of the case that the instance is for; None where its sizes cannot be told, or where
    it has nothing to compute."""
    scalars = {s.name: case.dims.get(s.name, _value(s)) for s in op.scalars}
    sizes = {**scalars, **case.dims, **instance.constants}
    there = [t for t in op.tensors if not t.optional or instance.constants.get(f"has_{t.name}", 1)]
    dims: dict[str, Any] = {name: sizes.get(name) for name in _dims(there)}
    if not all(isinstance(size, int) for size in dims.values()):
        return None
    shapes = {t.name: tuple(dims[s] if isinstance(s, str) else s for s in t.shape) for t in there}
    if 0 in shapes[op.outputs[0].name]:
        return None
    return Call(
        dims=dims,
        dtypes={t.name: instance.dtypes.get(t.name, t.dtypes[0]) for t in there},
        shapes=shapes,
        strides={name: packed_strides(shape) for name, shape in shapes.items()},
        alignments=dict.fromkeys(shapes, _ANY_ALIGNMENT_BYTES),
        scalars=scalars,
        device=device,
    )


def _value(scalar: Scalar) -> ScalarValue:
    some: ScalarValue = "fp32" if scalar.type == "dtype" else 1
    return some if scalar.default is REQUIRED else scalar.default
