"""A call of an operator as facts: all that a choice of kernel, variant or grid may look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparsekit.model.arch import Arch, Capability

ScalarValue = int | float | str | None


@dataclass(frozen=True)
class Device:
    """The device that a call's tensors live on. pci_bus_id: how other tools know it.

    only: the one target that is run, of those that would run on it; None for the best. emulated:
    it is a CPU that stands for such a device.
    """

    compute_capability: Capability
    sm_count: int
    shared_bytes_optin: int
    index: int = 0
    name: str = ""
    pci_bus_id: str = ""
    only: Arch | None = None
    emulated: bool = False


@dataclass(frozen=True)
class Call:
    """What is known of one call, taken from tensors or written by hand in a test.

    dims, scalars: by name. dtypes, shapes, strides (in elements; packed for a dim of one element)
    and alignments (the largest power of two, up to 256, that divides the address in bytes): by
    tensor, of those that are there.
    """

    dims: Mapping[str, int]
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    alignments: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, ScalarValue] = field(default_factory=dict)
    device: Device | None = None

    def has(self, tensor: str) -> bool:
        """Whether an optional tensor was given, or an optional output asked for."""
        return tensor in self.dtypes

    def fact(self, name: str) -> int | None:
        """The integer that an instance constant of that name stands for; None when there is none.

        `has_X` is 1 or 0 for an optional tensor X; any other name is a dim or an integer scalar.
        """
        if name.startswith("has_"):
            return int(self.has(name.removeprefix("has_")))
        if name in self.dims:
            return self.dims[name]
        value = self.scalars.get(name)
        return value if isinstance(value, int) else None

    def number(self, source: str) -> int | float | None:
        """The value of an argument source: a dim, a scalar, or `tensor.stride(i)`, which is 0 of a
        tensor that was not given; None where there is none."""
        tensor, dot, rest = source.partition(".stride(")
        if dot:
            return self.strides[tensor][int(rest.rstrip(")"))] if tensor in self.strides else 0
        if source in self.dims:
            return self.dims[source]
        value = self.scalars.get(source)
        return value if isinstance(value, int | float) else None


def packed_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides in elements of a tensor without gaps, the last dim the fastest."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)
