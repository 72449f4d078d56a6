"""Which part of a toolchain made the difference: its front end, its ptxas, or ptxas's options.

Each side's PTX is assembled by each side's ptxas with each side's options. A fact is put down to
the part whose exchange alone brings it from one side's value to the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from sparsekit.aot.assemble import assemble
from sparsekit.aot.elf import read_cubin
from sparsekit.aot.ptxas_log import spills
from sparsekit.codegen.facts import Fact, facts_of
from sparsekit.codegen.ledger import Ledger, SassFacts
from sparsekit.errors import SparsekitError
from sparsekit.model.arch import parse_arch
from sparsekit.model.toolchain import Toolchain

Side = Literal["ours", "base"]
SIDES: tuple[Side, Side] = ("base", "ours")
PARTS = ("front end", "ptxas", "options")
_Key = tuple[Side, Side, Side]  # whose PTX, whose ptxas, whose options
Reader = Callable[[bytes], "dict[str, SassFacts] | str"]
_UNDECIDED = "undecided: a cell that would tell it could not be made"
_TOGETHER = "several parts together"


@dataclass(frozen=True)
class Source:
    """One side: an entry as it was built, the PTX it was assembled from, and by what."""

    ledger: Ledger
    ptx: str
    toolchain: Toolchain
    options: tuple[str, ...]
    ptxas_release: str


@dataclass(frozen=True)
class Cell:
    """One combination. facts is None, and problem says why, where it could not be made."""

    ptx: Side
    ptxas: Side
    options: Side
    facts: Mapping[str, Fact] | None
    problem: str | None


@dataclass(frozen=True)
class Blamed:
    fact: str
    before: Fact
    now: Fact
    cause: str


@dataclass(frozen=True)
class Blame:
    """sources by side. reproduced: whether each side's own parts make its own code again, without
    which nothing that is said of the others counts."""

    sources: Mapping[Side, Source]
    cells: tuple[Cell, ...]
    differences: tuple[Blamed, ...]
    reproduced: Mapping[Side, bool]


def blame(base: Source, ours: Source, read: Reader) -> Blame:
    """Every combination of the parts, and every fact that differs with its cause."""
    sources: dict[Side, Source] = {"base": base, "ours": ours}
    made: dict[tuple[str, str, tuple[str, ...]], tuple[Mapping[str, Fact] | None, str | None]] = {}
    cells: dict[_Key, Cell] = {}
    for ptx, ptxas, options in product(SIDES, SIDES, SIDES):
        source, tool, told = sources[ptx], sources[ptxas], sources[options].options
        same = (source.ptx, tool.ptxas_release, told)
        if same not in made:
            made[same] = _assembled(source, tool, told, read)
        cells[ptx, ptxas, options] = Cell(ptx, ptxas, options, *made[same])
    before, now = facts_of(base.ledger), facts_of(ours.ledger)
    differing = [n for n in sorted({*before, *now}) if before.get(n) != now.get(n)]
    differences = tuple(
        Blamed(n, before.get(n), now.get(n), _cause(n, before.get(n), now.get(n), cells))
        for n in differing
        if not n.endswith("_sha256")
    )
    reproduced = {side: _is_reproduced(sources[side], cells[side, side, side]) for side in SIDES}
    return Blame(sources, tuple(cells.values()), differences, reproduced)


def _is_reproduced(source: Source, cell: Cell) -> bool:
    own = source.ledger.sass
    return (
        cell.facts is not None
        and own is not None
        and (cell.facts.get("text_sha256") == own.text_sha256)
    )


def _assembled(
    source: Source, tool: Source, options: tuple[str, ...], read: Reader
) -> tuple[Mapping[str, Fact] | None, str | None]:
    name = source.ledger.name
    ptxas = tool.toolchain.assembler_for(parse_arch(name.arch).compute_capability)
    try:
        done = assemble(ptxas, source.ptx, name.arch, options)
        entry = read_cubin(done.image).entries[name.entry]
    except SparsekitError as error:
        return None, str(error)
    found = read(done.image)
    if isinstance(found, str):
        return None, found
    spilled = spills(done.log).get(name.entry)
    resources = replace(
        source.ledger.resources,
        registers=entry.registers,
        local_bytes=entry.local_bytes,
        static_shared_bytes=entry.static_shared_bytes,
        spill_store_bytes=spilled.store_bytes if spilled else None,
        spill_load_bytes=spilled.load_bytes if spilled else None,
    )
    return facts_of(replace(source.ledger, resources=resources, sass=found[name.entry])), None


def _cause(name: str, before: Fact, now: Fact, cells: Mapping[_Key, Cell]) -> str:
    """The parts whose exchange alone moves the fact, from either side."""
    movers: list[str] = []
    decided = True
    for place, part in enumerate(PARTS):
        into_base = cells[_with("base", place, "ours")]
        into_ours = cells[_with("ours", place, "base")]
        if into_base.facts is None and into_ours.facts is None:
            decided = False
            continue
        moved_base = into_base.facts is not None and into_base.facts.get(name) == now
        moved_ours = into_ours.facts is not None and into_ours.facts.get(name) == before
        if moved_base or moved_ours:
            movers.append(part)
    if movers:
        return " or ".join(movers)
    return _TOGETHER if decided else _UNDECIDED


def _with(side: Side, place: int, other: Side) -> _Key:
    """The combination of one side's parts with one of the other's."""
    parts: list[Side] = [side, side, side]
    parts[place] = other
    return parts[0], parts[1], parts[2]
