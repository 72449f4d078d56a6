"""What is known of each cell of shared memory: who wrote and read it last, and when.

A cell is the largest power of two of bytes that no access of the kernel splits; where all accesses
are wider, one cell stands for several (see grains). A write or read is in order with an earlier
write when the accessing warp knows of it (see clocks); a write must be in order with all earlier
reads too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.access_kinds import (
    ASYNC,
    ASYNC_READ,
    ASYNC_WRITE,
    COPY_WRITE,
    READ,
    READS,
    STRONG_READ,
    STRONG_WRITE,
    WRITE,
)
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.clocks import (
    ATOMIC_AGENT,
    BARRIER_AGENT,
    COPY_AGENT,
    KINDS,
    WARP_AGENT,
)
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.grains import GROUP_BYTES, Grains, Touched
from sparsekit.emulator.layout import SHARED_START
from sparsekit.emulator.stored_values import StoredValues

if TYPE_CHECKING:
    from sparsekit.emulator.access_log import Bucket
    from sparsekit.emulator.machine import Machine


_AGENTS = {WRITE: WARP_AGENT, STRONG_WRITE: ATOMIC_AGENT, COPY_WRITE: COPY_AGENT}
_STRONG = (STRONG_READ, STRONG_WRITE)
_OF_ORDER = frozenset(
    {"race", "same-value-race", "proxy-fence", "copy-proxy-fence", "proxy-overwrite"}
)
_PROXY_CHECKS = ("proxy-fence", "copy-proxy-fence", "proxy-overwrite")


class SharedShadow:
    """The shadow of all shared memory of a batch.

    writer: the stamp of the last write, 0 for none; written_at: its instruction. last_read: the
    packed time of the last read by any warp; reads: the same by each warp; async_reads: by each
    other agent.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._clocks = machine.clocks
        checks = machine.findings.checks
        self._bounds, self._races = "bounds" in checks, bool(checks & _OF_ORDER)
        self._uninitialised = "uninitialised" in checks
        self._cell = machine.code.shared_cell
        self._shift = self._cell.bit_length() - 1
        self._cells = machine.storage.shared.size >> self._shift
        storage = machine.storage
        self._last = np.uint32(storage.shared.size - GROUP_BYTES)
        self._unit_base: Array = storage.unit_base[::WARP].astype(np.uint32)  # per row
        self._unit_bytes = np.uint32(machine.cluster_size * storage.shared_stride)
        self.writer = np.zeros(self._cells, np.int32)
        self.written_at = np.zeros(self._cells, np.int32)
        self._stored = StoredValues(self._cells, self._cell)
        self._grains = Grains(self._cells, self._shift)
        self.last_read = np.zeros(self._cells, np.int32)
        self.reads: Array | None = None
        self.strong_reads: Array | None = None
        self.async_reads: dict[int, Array] = {}
        self._proxies = [k for k in ("proxy-fence", "copy-proxy-fence") if k in checks]
        self._overwrites = "proxy-overwrite" in checks

    def reset(self) -> None:
        for table in (self.writer, self.last_read, self.reads, self.strong_reads):
            if table is not None and table.any():
                table[...] = 0
        self.async_reads.clear()

    def check(self, bucket: Bucket) -> None:
        """Check accesses in order with all before, and note them."""
        self._check_place(bucket)
        if not (self._races or self._uninitialised):
            return
        index = bucket.index if self._bounds else np.minimum(bucket.index, self._last)
        touched = self._grains.touch(index, bucket.size_bytes, self._tables())
        cells, rows = touched.cells, touched.spread(bucket.rows)
        now = bucket.stamps if isinstance(bucket.stamps, int) else touched.spread(bucket.stamps)
        stamps = self.writer.take(cells)
        agents = touched.spread(bucket.agents()) if bucket.kind in ASYNC else None
        if agents is not None and self._races:
            self._check_proxy(bucket, touched, rows, stamps)
        if bucket.kind in READS:
            if self._uninitialised and np.count_nonzero(stamps) != stamps.size:
                unwritten = (stamps == 0).nonzero()[0]
                self._report_uninitialised(bucket, touched.accesses(unwritten))
            if self._races:
                self._check_order(bucket, touched, rows, stamps)
                if agents is None:
                    self._note_read(bucket.kind, cells, rows, now)
                else:
                    self._note_async_read(cells, agents, now)
            return
        if agents is None:
            agents = self._clocks.agents_of(rows, _AGENTS[bucket.kind])
        new = (agents + now).astype(np.int32)
        if self._races:
            self._check_order(bucket, touched, rows, stamps)
            self._check_reads(bucket, touched, rows)
        self.writer[cells] = new
        self.written_at[cells] = touched.spread(bucket.instructions())
        if bucket.kind == WRITE and self._races:
            self._stored.note(bucket)
        if self._races and bucket.kind != STRONG_WRITE:
            other = self.writer.take(cells) != new
            if bucket.kind == WRITE and not isinstance(now, int):
                other = ((self.writer.take(cells) ^ new) & self._clocks.agent_mask) != 0
            if np.count_nonzero(other):
                self._report_overwrites(bucket, touched, other)

    def _tables(self) -> list[Array]:
        """All that is kept per cell, but what has been written."""
        tables = (self.writer, self.written_at, self.last_read, self.reads, self.strong_reads)
        return [*(t for t in tables if t is not None), *self.async_reads.values()]

    def _report_overwrites(self, bucket: Bucket, touched: Touched, late: Array) -> None:
        """Writes out of order with others; one of the same value is a fault of another kind."""
        same = np.zeros_like(late)
        if bucket.kind == WRITE:
            where = late.nonzero()[0]
            same[where] = self._stored.same(bucket, touched, where)
            writers = self.writer[touched.cells[where]]
            same[where] &= self._clocks.kind_of(writers) == WARP_AGENT
        if np.count_nonzero(same):
            self._report_races(bucket, touched, same, "writes", "same-value-race")
        different = late & ~same
        if np.count_nonzero(different):
            self._report_races(bucket, touched, different, "writes")

    def _check_place(self, bucket: Bucket) -> None:
        machine, size = self._machine, bucket.size_bytes
        if size > 1 and np.bitwise_or.reduce(bucket.index) & np.uint32(size - 1):
            at, thread = bucket.origin(int(((bucket.index & np.uint32(size - 1)) != 0).argmax()))
            text = f"an access of {size} bytes to shared memory that is not aligned to them"
            machine.findings.add(machine.geometry, "alignment", text, at, thread)
        if not self._bounds:
            return
        inside: Array = bucket.index - self._unit_base[bucket.rows]
        if machine.cluster_size > 1:
            far = inside >= self._unit_bytes
            inside = np.where(far, self._unit_bytes, inside % np.uint32(machine.shared_stride))
        end = machine.storage.shared_end
        if int(inside.min()) < SHARED_START or int(inside.max()) + size > end:
            bad = (inside < SHARED_START) | (inside.astype(np.int64) + size > end)
            position = int(bad.argmax())
            at, thread = bucket.origin(position)
            text = (
                f"{size} bytes at {int(inside[position]):#x} of shared memory, "
                f"which is [{SHARED_START:#x}, {end:#x})"
            )
            machine.findings.add(machine.geometry, "bounds", text, at, thread)

    def _check_order(self, bucket: Bucket, touched: Touched, rows: Array, stamps: Array) -> None:
        """Each access against the last write of its cell."""
        clocks = self._clocks
        agents = stamps & clocks.agent_mask
        known = clocks.known.reshape(-1).take(rows * clocks.width + agents)
        late = stamps > known
        if not np.count_nonzero(late):
            return
        if bucket.kind in _STRONG:
            late &= clocks.kind_of(agents) != ATOMIC_AGENT
            if not np.count_nonzero(late):
                return
        if bucket.kind in READS:
            self._report_races(bucket, touched, late, "reads")
        else:
            self._report_overwrites(bucket, touched, late)

    def _check_reads(self, bucket: Bucket, touched: Touched, rows: Array) -> None:
        """Each write against the earlier reads of its cell by other warps."""
        clocks, cells = self._clocks, touched.cells
        for agent, read_at in self.async_reads.items():
            late = read_at[cells] > clocks.known[rows, agent]
            if np.count_nonzero(late):
                self._report_race(bucket, touched, int(late.argmax()), "writes", agent)
        recent = self.last_read.take(cells) > clocks.floors().take(rows)
        if not np.count_nonzero(recent):
            return
        where = recent.nonzero()[0]
        known = clocks.known[rows[where], : clocks.warps].T
        tables = (self.reads,) if bucket.kind == STRONG_WRITE else (self.reads, self.strong_reads)
        for table in tables:
            if table is None:
                continue
            late = table[:, cells[where]] > known
            if np.count_nonzero(late):
                warp, position = np.argwhere(late)[0]
                self._report_race(bucket, touched, int(where[position]), "writes", int(warp))

    def _check_proxy(self, bucket: Bucket, touched: Touched, rows: Array, stamps: Array) -> None:
        """Accesses of the async proxy against generic writes that no proxy fence has made visible.

        Those that nothing orders at all are races, found elsewhere.
        """
        kinds = self._proxies if bucket.kind == ASYNC_READ else ["proxy-overwrite"]
        if not kinds or (bucket.kind == ASYNC_WRITE and not self._overwrites):
            return
        clocks = self._clocks
        hidden = clocks.unfenced(rows, stamps)
        if not np.count_nonzero(hidden):
            return
        agents = stamps & clocks.agent_mask
        hidden &= stamps <= clocks.known.reshape(-1).take(rows * clocks.width + agents)
        copied = clocks.kind_of(stamps) == COPY_AGENT
        for kind in kinds:
            bad = hidden
            if bucket.kind == ASYNC_READ:
                bad = hidden & (copied if kind == "copy-proxy-fence" else ~copied)
            if np.count_nonzero(bad):
                does = "reads" if bucket.kind == ASYNC_READ else "overwrites"
                self._report_races(bucket, touched, bad, does, kind)

    def _note_async_read(self, cells: Array, agents: Array, now: int | Array) -> None:
        for agent in np.unique(agents).tolist():
            table = self.async_reads.get(agent)
            if table is None:
                table = self.async_reads[agent] = np.zeros(self._cells, np.int32)
            mine = agents == agent
            table[cells[mine]] = (now if isinstance(now, int) else now[mine]) | agent

    def _note_read(self, kind: int, cells: Array, rows: Array, now: int | Array) -> None:
        name = "reads" if kind == READ else "strong_reads"
        table = getattr(self, name)
        if table is None:
            table = np.zeros((self._clocks.warps, self._cells), np.int32)
            setattr(self, name, table)
        self.last_read[cells] = now
        table.reshape(-1)[self._clocks.warp_of_row[rows] * self._cells + cells] = now

    def _report_uninitialised(self, bucket: Bucket, lanes: Array) -> None:
        machine = self._machine
        _, first = np.unique(bucket.instructions()[lanes], return_index=True)
        for lane in lanes[first].tolist():
            at, thread = bucket.origin(lane)
            offset = int(bucket.index[lane]) % machine.storage.shared_stride
            text = f"reads byte {offset:#x} of shared memory, which nothing has written"
            machine.findings.add(machine.geometry, "uninitialised", text, at, thread)

    def _report_races(
        self, bucket: Bucket, touched: Touched, late: Array, does: str, kind: str = "race"
    ) -> None:
        """One fault per instruction that is out of order with an earlier write."""
        positions = late.nonzero()[0]
        accesses = touched.accesses(positions)
        _, first = np.unique(bucket.instructions()[accesses], return_index=True)
        for position in positions[first].tolist():
            self._report_race(bucket, touched, position, does, kind=kind)

    def _report_race(
        self, bucket: Bucket, touched: Touched, position: int, does: str,
        reader: int | None = None, kind: str = "race",
    ) -> None:  # fmt: skip
        at, thread = bucket.origin(int(touched.accesses(np.array([position]))[0]))
        machine = self._machine
        cell = int(touched.cells[position])
        offset = (cell << self._shift) % machine.storage.shared_stride
        if reader is None:
            line = machine.line(int(self.written_at[cell]))
            other = f"{self.name_of(int(self.writer[cell]))} wrote in PTX line {line}"
        else:
            other = f"{self.name_of(reader)} reads"
        why = "nothing orders the two"
        if kind in _PROXY_CHECKS:
            why = "there is no fence.proxy.async between the two"
        does = f"{does} in the async proxy" if bucket.kind in ASYNC else does
        text = (
            f"warp {int(machine.geometry.warp[thread])} {does} byte {offset:#x} of shared memory, "
            f"which {other}, and {why}"
        )
        machine.findings.add(machine.geometry, kind, text, at, thread)

    def name_of(self, stamp: int) -> str:
        """The agent of a stamp for a message."""
        kind, number = self._clocks.agent(stamp)
        if kind == BARRIER_AGENT:
            where = self._machine.mbarriers.place_of(number)
            return f"a copy that completes on the mbarrier at {where}"
        return f"{KINDS[kind]} {self._warp(number)}"

    def _warp(self, warp: int) -> str:
        """A warp of a unit for a message: with its block's rank in a cluster."""
        rank, number = divmod(warp, self._machine.geometry.shape.warps)
        return f"{number} of block {rank}" if self._machine.cluster_size > 1 else str(number)
