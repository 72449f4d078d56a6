"""Instructions that no result depends on, each with the reason."""

from __future__ import annotations

from sparsekit.emulator.table import Chapter

CHAPTER = Chapter("Instructions without an effect on results")
_NO_CACHE = "there is no cache"

CHAPTER.hint("prefetch space=global|local? level=L1|L2", 1, _NO_CACHE)
CHAPTER.hint("prefetch space=global level=L2::evict_last|L2::evict_normal", 1, _NO_CACHE)
CHAPTER.hint("prefetch space=const|param? tensormap", 1, _NO_CACHE)
CHAPTER.hint("prefetchu L1", 1, _NO_CACHE)
CHAPTER.hint("applypriority space=global? level=L2::evict_normal", 2, _NO_CACHE)
CHAPTER.hint("nanosleep t=u32", 1, "time is not modelled")
CHAPTER.hint("pmevent mask?", 1, "there are no performance counters")
CHAPTER.hint("setmaxnreg op=inc|dec sync aligned t=u32", 1, "registers are never short")
CHAPTER.hint("griddepcontrol op=launch_dependents|wait", 0, "the launch before has always ended")
CHAPTER.hint(
    "createpolicy fractional primary=L2::evict_last|L2::evict_normal|L2::evict_first|"
    "L2::evict_unchanged secondary=L2::evict_first|L2::evict_unchanged? t=b64",
    (1, 2),
    _NO_CACHE,
)
CHAPTER.hint(
    "createpolicy range primary=L2::evict_last|L2::evict_normal|L2::evict_first|"
    "L2::evict_unchanged secondary=L2::evict_first|L2::evict_unchanged? space=global? t=b64",
    (4,),
    _NO_CACHE,
)
CHAPTER.hint("createpolicy cvt L2 t=b64", 2, _NO_CACHE)
CHAPTER.hint("discard space=global? level=L2", 2, "what it allows to be lost is kept")
