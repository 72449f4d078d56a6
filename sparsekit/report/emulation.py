"""Findings and coverage of emulated runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsekit.model.results import CodeBlock, Coverage, Finding, VerifyResult
from sparsekit.report.document import Lines, Table
from sparsekit.report.units import first_line_of

_COLUMNS = ("kernel", "variant", "instance", "entry", "archs", "blocks", "executed", "percent")
_RIGHT = frozenset({"blocks", "executed", "percent"})
_WHOLE = 100.0
_SHOWN_BLOCKS = 12
_RANDOM = "random("
NOT_TAKEN = "no kernel takes this call"


@dataclass(frozen=True)
class EntryCoverage:
    """What all cases together have executed of an entry of one artifact."""

    kernel: str
    variant: str
    arch: str
    coverage: Coverage

    @property
    def executed(self) -> int:
        return self.coverage.blocks - len(self.coverage.uncovered)

    @property
    def percent(self) -> float:
        return _WHOLE * self.executed / max(self.coverage.blocks, 1)


def merged_coverage(results: Iterable[VerifyResult]) -> list[EntryCoverage]:
    """Per artifact and entry: the blocks that no case has executed."""
    found: dict[tuple[str, str], EntryCoverage] = {}
    for result in results:
        for coverage in result.coverage:
            key = (coverage.key, coverage.entry)
            known = found.get(key)
            if known is not None:
                coverage = known.coverage.joined(coverage)
            found[key] = EntryCoverage(result.kernel, result.variant, result.arch or "", coverage)
    return list(found.values())


def coverage_parts(entries: Sequence[EntryCoverage]) -> list[Table | Lines]:
    """A row per entry, archs whose code is alike together, and the blocks that nothing reached."""
    alike: dict[tuple[Any, ...], list[EntryCoverage]] = {}
    for e in entries:
        code = e.coverage
        key = (e.kernel, e.variant, code.instance, code.entry, code.blocks, code.uncovered)
        alike.setdefault(key, []).append(e)
    if not alike:
        return []
    rows = [
        (*key[:4], _archs(group), key[4], group[0].executed, f"{group[0].percent:.1f}")
        for key, group in alike.items()
    ]
    parts: list[Table | Lines] = [Table("Coverage: basic blocks of PTX", _COLUMNS, rows, _RIGHT)]
    lines = [
        f"{kernel}:{variant} [{instance}] {entry} {_archs(group)}: {blocks_text(uncovered)}"
        for (kernel, variant, instance, entry, _, uncovered), group in alike.items()
        if uncovered
    ]
    if lines:
        parts.append(Lines(tuple(lines), "Not executed, by PTX lines"))
    return parts


def _archs(group: Sequence[EntryCoverage]) -> str:
    return " ".join(sorted({e.arch for e in group}))


def coverage_data(entries: Sequence[EntryCoverage]) -> list[dict[str, Any]]:
    return [
        {
            "kernel": e.kernel, "variant": e.variant, "arch": e.arch, "key": e.coverage.key,
            "instance": e.coverage.instance, "entry": e.coverage.entry,
            "blocks": e.coverage.blocks, "executed": e.executed,
            "uncovered": [
                {"function": b.function, "line": b.line, "last_line": b.last_line,
                 "source": b.source}
                for b in e.coverage.uncovered
            ],
        }
        for e in entries
    ]  # fmt: skip


def emulated_parts(results: Sequence[Mapping[str, Any]]) -> list[Table | Lines]:
    """Per variant and kind of schedule how many cases held, in how many of those that another one
    of the kernel ran too both gave the same bits, and what was left out. results: as `verify`
    stores them."""
    bits: dict[tuple[str, str], dict[str, list[str]]] = {}
    groups: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = {}
    for r in results:
        if r["schedules"]:
            own = bits.setdefault((r["kernel"], r["variant"]), {})
            own[r["case"]] = sorted(f"{name} {o['sha256']}" for name, o in r["outputs"].items())
            key = (r["kernel"], r["variant"], r["arch"] or "", _schedules(r["schedules"]))
            groups.setdefault(key, []).append(r)
    if not groups:
        return []
    rows = [
        (
            f"{kernel}:{variant}", arch, schedules, len({r["case"] for r in group}),
            sum(r["launches"] for r in group), sum(r["ok"] is True for r in group),
            sum(r["ok"] is False for r in group),
            _alike(kernel, variant, {r["case"] for r in group}, bits),
        )
        for (kernel, variant, arch, schedules), group in sorted(groups.items())
    ]  # fmt: skip
    left_out = dict.fromkeys(
        f"Left out: {r['case']}: {first_line_of(r['reason'])}."
        for r in results
        if r["skipped"] and not (r["reason"] or "").startswith(NOT_TAKEN)
    )
    columns = (
        "variant", "arch", "schedules", "cases", "launches", "ok", "failed", "same bits as",
    )  # fmt: skip
    parts: list[Table | Lines] = [Table("", columns, rows, frozenset(columns[3:7]))]
    return [*parts, Lines(tuple(left_out))] if left_out else parts


def _alike(
    kernel: str, variant: str, cases: Collection[str],
    bits: Mapping[tuple[str, str], Mapping[str, Sequence[str]]],
) -> str | None:  # fmt: skip
    """In how many of the cases that both ran, for each other variant of the kernel."""
    own = bits[kernel, variant]
    told: list[str] = []
    for (other_kernel, name), other in sorted(bits.items()):
        shared = [case for case in cases if case in other]
        if other_kernel == kernel and name != variant and shared:
            told.append(f"{name} {sum(own[c] == other[c] for c in shared)} of {len(shared)}")
    return ", ".join(told) or None


def _schedules(names: Sequence[str]) -> str:
    fixed = [name for name in names if not name.startswith(_RANDOM)]
    random = len(names) - len(fixed)
    return ", ".join([*fixed, *([f"{random} random"] if random else [])])


def finding_lines(findings: Iterable[Finding]) -> tuple[str, ...]:
    """What was found, where in PTX and source, who did it, and under which schedules."""
    return tuple(line for finding in findings for line in _finding(finding))


def _finding(f: Finding) -> Iterable[str]:
    yield f"{f.check}: {f.message}"
    if f.ptx_line:
        yield f"    PTX line {f.ptx_line}: {f.instruction}"
    if f.source:
        yield f"    source {f.source}"
    who = [f"block {_triple(f.block)}"] if f.block else []
    who += [f"thread {_triple(f.thread)}"] if f.thread else []
    yield f"    {', '.join([f'entry {f.entry}', *who])}; schedule {', '.join(f.schedules)}"


def _triple(index: tuple[int, int, int]) -> str:
    return ",".join(map(str, index))


def blocks_text(blocks: Sequence[CodeBlock]) -> str:
    """The first blocks by their lines, and how many more there are; JSON has them all."""
    more = len(blocks) - _SHOWN_BLOCKS
    shown = ", ".join(map(_block, blocks[:_SHOWN_BLOCKS]))
    return f"{shown} and {more} more" if more > 0 else shown


def _block(block: CodeBlock) -> str:
    span = str(block.line) if block.line == block.last_line else f"{block.line}-{block.last_line}"
    return f"{span} ({block.source})" if block.source else span
