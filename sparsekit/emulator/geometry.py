"""Who is who in a batch: the threads' places, and the special registers that tell them.

Source: PTX ISA, Special Registers. A unit is a block, or a cluster of blocks, whose threads share
memory; warps count through the whole unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.faults import Triple

WARP = 32
SM_COUNT = 2  # few, so that kernels with a block per SM have several items for each
_AXES = "xyz"


@dataclass(frozen=True)
class Shape:
    """The extents of a launch: the grid in blocks, a block in threads, a cluster in blocks."""

    grid: Triple
    block: Triple
    cluster: Triple = (1, 1, 1)

    @property
    def blocks(self) -> int:
        return volume(self.grid)

    @property
    def threads(self) -> int:
        return volume(self.block)

    @property
    def warps(self) -> int:
        """Warps of one block."""
        return -(-self.threads // WARP)

    @property
    def cluster_size(self) -> int:
        return volume(self.cluster)

    @property
    def clusters(self) -> Triple:
        gx, gy, gz = self.grid
        cx, cy, cz = self.cluster
        return gx // cx, gy // cy, gz // cz

    @property
    def units(self) -> int:
        return volume(self.clusters)


class Geometry:
    """The places of the threads of a batch of `units` units.

    Per thread: row (its warp in the batch), unit, rank (its block in the cluster), batch_block (its
    block in the batch), tid (in its block, counted through), exists (False past the end of a block
    that is no whole warps).
    """

    def __init__(self, shape: Shape, units: int) -> None:
        self.shape, self.units = shape, units
        self.warps_per_unit = shape.cluster_size * shape.warps
        self.threads = self.warps_per_unit * units * WARP
        lane = np.arange(self.threads)
        self.row = lane // WARP
        self.unit = self.row % units
        warp = self.row // units
        self.rank = warp // shape.warps
        self.warp = warp % shape.warps
        self.tid = self.warp * WARP + lane % WARP
        self.exists = self.tid < shape.threads
        self.batch_block = self.unit * shape.cluster_size + self.rank
        self._first_unit = 0
        self._values: dict[str, Array] = {}

    def start_batch(self, first_unit: int) -> None:
        """Stand for the units from first_unit on; arrays handed out before change with it."""
        self._first_unit = first_unit
        for name, array in self._values.items():
            array[...] = self._value(name)

    def block_of(self, thread: int) -> Triple:
        """The index of a thread's block in the grid."""
        unit = self._first_unit + int(self.unit[thread])
        return self.block_index(unit * self.shape.cluster_size + int(self.rank[thread]))

    def thread_of(self, thread: int) -> Triple:
        """The index of a thread in its block."""
        return unlinear(int(self.tid[thread]), self.shape.block)

    def block_number(self) -> Array:
        """Per thread the number of its block in the launch, unit by unit."""
        return (self._first_unit + self.unit) * self.shape.cluster_size + self.rank

    def block_index(self, number: int) -> Triple:
        """The index in the grid of a block by its number in the launch."""
        unit, rank = divmod(number, self.shape.cluster_size)
        outer = unlinear(unit, self.shape.clusters)
        inside = unlinear(rank, self.shape.cluster)
        x, y, z = (u * c + i for u, c, i in zip(outer, self.shape.cluster, inside, strict=True))
        return x, y, z

    def special(self, name: str) -> Array:
        """A special register of all threads, u8; kept up to date from batch to batch."""
        if name not in self._values:
            self._values[name] = self._value(name).astype(np.uint64)
        return self._values[name]

    def _value(self, name: str) -> Array:
        shape = self.shape
        register, _, axis = name.removeprefix("%").partition(".")
        i = _AXES.find(axis) if axis else -1
        unit = self._first_unit + self.unit
        lane = np.arange(self.threads) % WARP
        one = np.ones(self.threads, np.int64)
        if axis:
            values = {
                "tid": (self.tid, shape.block), "ctaid": (None, shape.grid),
                "clusterid": (unit, shape.clusters), "cluster_ctaid": (self.rank, shape.cluster),
            }  # fmt: skip
            extents = {
                "ntid": shape.block, "nctaid": shape.grid, "nclusterid": shape.clusters,
                "cluster_nctaid": shape.cluster,
            }  # fmt: skip
            if i < 0:  # .w of a four-part register
                return one * 0
            if register in extents:
                return one * extents[register][i]
            number, extent = values[register]
            if number is not None:
                return _part(number, extent, i)
            outer = _part(unit, shape.clusters, i) * shape.cluster[i]
            return outer + _part(self.rank, shape.cluster, i)
        plain = {
            "laneid": lane, "warpid": self.warp, "nwarpid": one * shape.warps,
            "smid": (unit * shape.cluster_size + self.rank) % SM_COUNT, "nsmid": one * SM_COUNT,
            "gridid": one, "cluster_ctarank": self.rank,
            "cluster_nctarank": one * shape.cluster_size,
            "is_explicit_cluster": one * (shape.cluster_size > 1),
            "WARP_SZ": one * WARP, "lanemask_eq": one << lane, "lanemask_lt": (one << lane) - 1,
            "lanemask_le": (one << (lane + 1)) - 1,
            "lanemask_gt": (1 << WARP) - (one << (lane + 1)),
            "lanemask_ge": (1 << WARP) - (one << lane),
        }  # fmt: skip
        if register not in plain:
            raise KeyError(name)
        return plain[register]


_MODELLED = """
    laneid warpid nwarpid smid nsmid gridid cluster_ctarank cluster_nctarank is_explicit_cluster
    WARP_SZ lanemask_eq lanemask_lt lanemask_le lanemask_gt lanemask_ge dynamic_smem_size
    total_smem_size aggr_smem_size reserved_smem_offset_begin reserved_smem_offset_end
    reserved_smem_offset_cap
"""
_MODELLED_PARTS = "tid ntid ctaid nctaid clusterid nclusterid cluster_ctaid cluster_nctaid"


def is_modelled(name: str) -> bool:
    """Whether a special register has a value here; those of the clock are no vectors."""
    register, _, axis = name.removeprefix("%").partition(".")
    return register in (_MODELLED_PARTS if axis else _MODELLED).split()


def volume(extent: Triple) -> int:
    return extent[0] * extent[1] * extent[2]


def unlinear(number: int, extent: Triple) -> Triple:
    """The index whose x runs fastest."""
    return number % extent[0], number // extent[0] % extent[1], number // (extent[0] * extent[1])


def _part(number: Array, extent: Triple, axis: int) -> Array:
    stride = (1, extent[0], extent[0] * extent[1])[axis]
    return number // stride % extent[axis]
