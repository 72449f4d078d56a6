"""PTX ISA, Parallel Synchronization and Communication Instructions: fence between proxies."""

from __future__ import annotations

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.clocks import GLOBAL_PART, SHARED_PART
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer

_PARTS = {"": (SHARED_PART, GLOBAL_PART), "shared": (SHARED_PART,), "global": (GLOBAL_PART,)}
CHAPTER = Chapter("Parallel Synchronization and Communication Instructions: fence.proxy")


@CHAPTER.form("fence proxy what=async space=global|shared::cta|shared::cluster?", 0)
@CHAPTER.form("fence proxy what=alias", 0)
def fence_proxy(w: Writer, m: Matched) -> None:
    """What a warp knows of becomes visible to the async proxy. Aliases are one memory here."""
    parts = _PARTS[m["space"].partition("::")[0]] if m["what"] == "async" else ()
    w.line(f"{w.fn(make_visible)}(L, {parts!r}, {w.mask})")


def make_visible(c: Convoy, parts: tuple[int, ...], mask: Array | None) -> None:
    """The warps' accesses, and those that they know of, before those of the async proxy."""
    if c.log is not None and c.machine.clocks.proxies:
        c.log.flush()
        c.machine.clocks.fence_proxy(c.warps(mask), parts)


@CHAPTER.form("fence mbarrier_init release cluster", 0)
def fence_mbarrier_init(w: Writer, m: Matched) -> None:
    """A relaxed arrival at the cluster's barrier passes on mbarriers that are initialised."""
    w.line(f"{w.fn(publish_mbarriers)}(L, {w.mask})")


def publish_mbarriers(c: Convoy, mask: Array | None) -> None:
    if c.log is not None:
        c.machine.cluster_barrier.publish_mbarriers(c.warps(mask))
