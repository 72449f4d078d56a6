"""The facts of a ledger by name: one vocabulary for requirements, comparisons, locks and tables.

A name that is not in `KINDS` means nothing and is refused wherever it is typed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from sparsekit.codegen.ledger import (
    BULK_LOADS,
    GLOBAL_LOADS,
    UNKNOWN_WIDTH,
    Histogram,
    Ledger,
    LoopFacts,
    SassFacts,
    count_of,
)
from sparsekit.codegen.sass import ACCESSES
from sparsekit.errors import UsageError

Fact = int | float | str | None
_PTX_LOADS = ("ld.global", "cp.async")
_BULK, _TMA = BULK_LOADS
_DECIMALS = 3


@dataclass(frozen=True)
class Kind:
    """Facts whose names match `form` (N: a number). better: which direction is good, None for
    neither. zero: a fact of the kind that is not there is 0 where its code was read. group:
    "resources", "widths" or "code"."""

    form: str
    group: Literal["resources", "widths", "code"]
    better: Literal["more", "less"] | None
    about: str
    zero: bool = False

    def matches(self, name: str) -> bool:
        return re.fullmatch(self.form.replace(".", r"\.").replace("N", r"\d+"), name) is not None


_ACCESS = f"(?:{'|'.join(sorted(ACCESSES))})"
KINDS: tuple[Kind, ...] = (
    Kind("registers", "resources", "less", "registers per thread"),
    Kind("spills", "resources", "less", "bytes that spills store and load"),
    Kind("spill_store_bytes", "resources", "less", "bytes that spills store"),
    Kind("spill_load_bytes", "resources", "less", "bytes that spills load"),
    Kind("local_bytes", "resources", "less", "stack frame per thread, bytes"),
    Kind("shared_bytes", "resources", "less", "shared memory per block, bytes"),
    Kind("static_shared_bytes", "resources", "less", "its static part, bytes"),
    Kind("dynamic_shared_bytes", "resources", "less", "its dynamic part, bytes"),
    Kind("shared_limit_bytes", "resources", None, "what a block may have on the arch, bytes"),
    Kind("threads", "resources", None, "threads per block"),
    Kind("barriers", "resources", None, "named barriers"),
    Kind("gather.count", "widths", None, "loads whose address depends on an earlier load"),
    Kind("gather.min_bytes", "widths", "more", "width of the narrowest, bytes per thread"),
    Kind("gather.mean_bytes", "widths", "more", "their width, mean weighted by bytes"),
    Kind("load.count", "widths", None, "global loads"),
    Kind("load.min_bytes", "widths", "more", "width of the narrowest, bytes per thread"),
    Kind("load.mean_bytes", "widths", "more", "their width, mean weighted by bytes"),
    Kind("store.count", "widths", None, "global stores"),
    Kind("store.min_bytes", "widths", "more", "width of the narrowest, bytes per thread"),
    Kind("store.mean_bytes", "widths", "more", "their width, mean weighted by bytes"),
    Kind("bulk.count", "widths", None, "bulk copies from global memory"),
    Kind("tma.count", "widths", None, "TMA loads"),
    Kind("loops", "widths", None, "loops"),
    Kind("loops.max_loads", "widths", "more", "most loads in one iteration of a loop"),
    Kind("loops.max_load_bytes", "widths", "more", "most bytes a thread loads in one iteration"),
    Kind(
        "loops.min_load_bytes",
        "widths",
        "more",
        "the same where it is least, an unrolled loop and its remainders as one",
    ),
    Kind("loopN.loads", "widths", None, "loads in one iteration, inner loops left out"),
    Kind("loopN.load_bytes", "widths", "more", "bytes that a thread loads in one iteration"),
    Kind("loopN.gathers", "widths", None, "gathers in one iteration"),
    Kind("loopN.min_bytes", "widths", "more", "width of the narrowest load in the loop"),
    Kind("loopN.depth", "widths", None, "loops around this one"),
    Kind("loopN.instructions", "code", None, "instructions of the loop"),
    Kind("ptx.load.min_bytes", "widths", "more", "narrowest ld.global or cp.async in PTX"),
    Kind("ptx.load.mean_bytes", "widths", "more", "their width, mean weighted by bytes"),
    Kind("ptx.(?:ld.global|cp.async).wN", "widths", None, "loads of N bytes in PTX", zero=True),
    Kind(f"sass.{_ACCESS}.wN", "widths", None, "accesses of N bytes in SASS", zero=True),
    Kind("mma.count", "widths", None, "matrix instructions"),
    Kind(r"mma.[A-Z][A-Z0-9_x.]*", "widths", None, "matrix instructions of that opcode"),
    Kind("(?:ffma|fmul|fadd|mufu)", "code", None, "instructions of that kind"),
    Kind("ftz", "code", None, "instructions that flush subnormals"),
    Kind("instructions", "code", None, "instructions"),
    Kind("code_bytes", "code", None, "size of the code section, bytes"),
    Kind("text_sha256", "code", None, "digest of the code"),
    Kind("instructions_sha256", "code", None, "digest of it that ignores scheduling"),
)


def facts_of(ledger: Ledger) -> dict[str, Fact]:
    """All facts of an entry; what is not known is None, and what it has not is absent."""
    resources = ledger.resources
    facts: dict[str, Fact] = {**asdict(resources), "shared_bytes": resources.shared_bytes}
    stores, loads = resources.spill_store_bytes, resources.spill_load_bytes
    facts["spills"] = None if stores is None or loads is None else stores + loads
    if ledger.ptx_loads is not None:
        facts |= _widths("ptx.load", _chosen(ledger.ptx_loads, _PTX_LOADS), count=False)
        for kind in _PTX_LOADS:
            widths = ledger.ptx_loads.get(kind, {})
            facts |= {f"ptx.{kind}.w{width}": count for width, count in widths.items()}
    if ledger.sass is not None:
        facts |= _sass_facts(ledger.sass)
    return facts


def _sass_facts(sass: SassFacts) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "barriers": sass.barriers,
        "instructions": sass.instructions,
        "code_bytes": sass.code_bytes,
        "text_sha256": sass.text_sha256,
        "instructions_sha256": sass.instructions_sha256,
        "bulk.count": sum(sass.accesses.get(_BULK, {}).values()),
        "tma.count": sum(sass.accesses.get(_TMA, {}).values()),
        "mma.count": sum(sass.tensor.values()),
        "loops": len(sass.loops),
    }
    facts |= _widths("load", _chosen(sass.accesses, GLOBAL_LOADS))
    facts |= _widths("gather", _chosen(sass.gathers, (*GLOBAL_LOADS, *BULK_LOADS)))
    facts |= _widths("store", _chosen(sass.accesses, ("STG",)))
    for kind, widths in sass.accesses.items():
        known = {w: c for w, c in widths.items() if w != UNKNOWN_WIDTH}
        facts |= {f"sass.{kind}.w{width}": count for width, count in known.items()}
    facts |= {f"mma.{opcode}": count for opcode, count in sass.tensor.items()}
    facts |= {name.lower(): count for name, count in sass.arithmetic.items()}
    for number, loop in enumerate(sass.loops):
        facts |= {f"loop{number}.{name}": value for name, value in _loop_facts(loop).items()}
    if sass.loops:
        facts["loops.max_loads"] = max(count_of(loop.loads) for loop in sass.loops)
        facts["loops.max_load_bytes"] = max(_bytes(loop.loads) for loop in sass.loops)
        streams: dict[int, int] = {}
        for loop in sass.loops:
            if loop.stream is not None:
                most = max(streams.get(loop.stream, 0), _bytes(loop.loads))
                streams[loop.stream] = most
        if streams:
            facts["loops.min_load_bytes"] = min(streams.values())
    return facts


def _loop_facts(loop: LoopFacts) -> dict[str, Fact]:
    found: dict[str, Fact] = {
        "loads": count_of(loop.loads),
        "load_bytes": _bytes(loop.loads),
        "gathers": count_of(loop.gathers),
        "depth": loop.depth,
        "instructions": loop.instructions,
    }
    if widths := _chosen(loop.loads, GLOBAL_LOADS):
        found["min_bytes"] = min(widths)
    return found


def _chosen(histogram: Histogram, kinds: Iterable[str]) -> dict[int, int]:
    """Counts by width over some classes; what has no width counts as 0 bytes wide."""
    found: dict[int, int] = {}
    for kind in kinds:
        for width, count in histogram.get(kind, {}).items():
            number = int(width) if width.isdigit() else 0
            found[number] = found.get(number, 0) + count
    return found


def _widths(prefix: str, counts: Mapping[int, int], *, count: bool = True) -> dict[str, Fact]:
    """Count, narrowest width, and the mean in which each access weighs what it moves."""
    facts: dict[str, Fact] = {f"{prefix}.count": sum(counts.values())} if count else {}
    known = {width: n for width, n in counts.items() if width}
    if known:
        moved = sum(width * n for width, n in known.items())
        mean = sum(width * width * n for width, n in known.items()) / moved
        facts[f"{prefix}.min_bytes"] = min(known)
        facts[f"{prefix}.mean_bytes"] = round(mean, _DECIMALS)
    return facts


def _bytes(histogram: Histogram) -> int:
    widths = _chosen(histogram, GLOBAL_LOADS)
    return sum(width * count for width, count in widths.items())


def kind_of(name: str) -> Kind:
    """The kind of a fact. Raises UsageError for a name that means nothing, with what is like it."""
    found = next((kind for kind in KINDS if kind.matches(name)), None)
    if found is None:
        spelt = [k.form for k in KINDS if re.fullmatch(r"[\w.]+", k.form)]
        close = difflib.get_close_matches(re.sub(r"\d+", "N", name), spelt, 3, cutoff=0.5)
        hint = f"; did you mean {', '.join(close)}" if close else ""
        raise UsageError(f"there is no fact {name!r}{hint}; docs/inspect.md lists them all")
    return found


def fact(facts: Mapping[str, Fact], name: str) -> Fact:
    """The fact, 0 for a count of what is not there, None where nothing tells."""
    if name in facts:
        return facts[name]
    if not kind_of(name).zero:
        return None
    source = "ptx." if name.startswith("ptx.") else "instructions"
    return 0 if any(known.startswith(source) for known in facts) else None


def is_worse(name: str, before: Fact, now: Fact) -> bool:
    """Whether the fact went in its bad direction; a fact that one side lacks did not."""
    if isinstance(before, str) or isinstance(now, str) or before is None or now is None:
        return False
    better = kind_of(name).better
    return now < before if better == "more" else better == "less" and now > before
