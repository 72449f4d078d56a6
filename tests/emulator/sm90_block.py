"""What synchronisation of the Hopper block nothing misses, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping

_OFFSET = r"add\.s64 \t%rd\d+, %rd\d+, (\d+);"
_INITIALISED = rf"{_OFFSET}(?:(?!add\.s64)[^@])*?mbarrier\.init"
BARRIERS = (
    "full[0]", "full[1]", "full[2]", "rope_full", "q_full", "s_done", "p_full", "p_free",
    *(f"q_read[{item}]" for item in range(4)), "end_full[0]", "end_full[1]",
)  # fmt: skip
"""Of SharedMemory, in the order of their `init`."""


def why_redundant(
    unneeded: Mapping[str, str], line: int, instruction: str, text: str
) -> str | None:
    """Why nothing goes wrong without an instruction; None where it is needed.

    unneeded: the reason by barrier, where a kernel's cases need no wait for it.
    """
    before = "\n".join(text.splitlines()[: line - 1])
    if "mbarrier" in instruction:
        names = dict(zip(re.findall(_INITIALISED, text), BARRIERS, strict=True))
        return unneeded.get(names.get(re.findall(_OFFSET, before)[-1], ""))
    if "wgmma.fence" in instruction:
        last = re.findall(r"wgmma\.(mma_async|commit_group|wait_group)", before)[-1]
        return "of the same sum as the products before it" if last == "mma_async" else None
    stores_p = text.splitlines()[line + 1].strip().startswith("bar.warp.sync")
    if "fence.proxy" in instruction and stores_p:
        last = re.findall(r"wgmma\.(mma_async|wait_group)", before)[-1]
        why = "P V waits for the gate, and before that comes the fence for the last chunks"
        return why if last == "mma_async" else None
    return None
