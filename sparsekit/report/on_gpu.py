"""What the scripts of `tests/gpu` found: whether `bench` can be believed, the emulator, rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparsekit.report.document import Cell, Lines, Table
from sparsekit.report.gpus import are_several, on_gpu_text, with_gpus
from sparsekit.report.stored import Stored, Wanted, of_kind

ROWS_OP = "sparse_prefill"  # what rows of a prefill kernel are of
PAGED_OPS = ("sparse_attn_paged", "gated_pool")
_BESIDE = ("seed2_", "reach_", "aim_")
Finding = Mapping[str, Any]
Row = tuple[Cell, ...]


def control(stored: Sequence[Stored], wanted: Wanted) -> list[Table | Lines]:
    """A kernel against itself in each mode of `bench`, and a planted slow-down: a line each."""
    found = [(file.gpu, f) for file in of_kind(stored, "control") for f in file.data["findings"]]
    if not found:
        return []
    rows: list[Row] = [
        (f["what"], f.get("method"), _verdicts(f["verdicts"]), _span(f.get("ratios")), f["ok"])
        for _, f in found
    ]
    columns = ("what", "method", "verdicts", "ratios", "ok")
    gpus = [gpu for gpu, _ in found]
    return [with_gpus(Table("Control of bench", columns, rows), gpus, are_several(gpus))]


def _verdicts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _span(ratios: Sequence[float] | None) -> str | None:
    return f"{ratios[0]:.4f} to {ratios[-1]:.4f}" if ratios else None


def emulator(stored: Sequence[Stored], wanted: Wanted) -> list[Table | Lines]:
    """The same PTX on a GPU and emulated: a line per kind of subject and data."""
    parts: list[Table | Lines] = []
    columns = ("what", "data", "compared", "elements", "other bits", "worst", "failed")
    for file in of_kind(stored, "against-emulator"):
        rows = [*_kernels(file.data), *_tiles(file.data["tiles"]), *_functions(file.data)]
        other = file.environment.get("gpu") or "float64, without a GPU"
        parts.append(Table(f"Emulator against {other}", columns, rows, frozenset(columns[2:])))
        parts.append(Lines(tuple(_said(file.data))))
    return parts


def rows(stored: Sequence[Stored], wanted: Wanted) -> list[Table | Lines]:
    """Rows of kernels beside their peers and what was asked for: a line each."""
    parts: list[Table | Lines] = []
    columns = ("row", "kernel", "ms", "TFLOP/s", "FlashMLA", "reach", "aim")
    for file in of_kind(stored, "prefill-rows"):
        data = file.data
        lines = [
            (
                r["name"], r["kernel"], f"{r['ms']:.3f}", f"{r['tflops']:.0f}",
                *(_ms(r[f"{which}_ms"]) for which in ("flashmla", "reach", "aim")),
            )
            for r in data["rows"]
            if wanted.takes(ROWS_OP, r["name"])
        ]  # fmt: skip
        title = f"Rows on {file.environment.get('gpu')}"
        parts.append(Table(title, columns, lines, frozenset(columns[2:])))
        parts.append(
            Lines(
                (
                    f"Medians of {data['rounds']} interleaved rounds; the bf16 matmul of 8192^3 "
                    f"among them took {data['matmul_ms']:.3f} ms, so the three columns on the "
                    f"right are those measured beside one of 1.603 ms times "
                    f"{data['scale_of_columns']:.3f}.",
                )
            )
        )
    return [*parts, *_paged_rows(stored, wanted)]


def _paged_rows(stored: Sequence[Stored], wanted: Wanted) -> Iterator[Table | Lines]:
    """Rows of paged attention and pooling beside seed 2's kernels, all in us: a line each."""
    columns = ("row", "kernel", "us", "seed 2", "reach", "aim")
    for file in of_kind(stored, "paged-rows"):
        lines = [
            (r["name"], r["kernel"], *(_us(r[f"{which}us"]) for which in ("", *_BESIDE)))
            for r in file.data["rows"]
            if any(wanted.takes(op, r["name"]) for op in PAGED_OPS)
        ]
        if lines:
            title = f"Rows on {file.environment.get('gpu')}"
            yield Table(title, columns, lines, frozenset(columns[2:]))
            yield Lines(("Graph replay, L2 warm; seed 2: the better of its two variants.",))


def _us(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def tried(stored: Sequence[Stored], wanted: Wanted) -> list[Table | Lines]:
    """Designs of a prefill kernel against the one before: times and cycles a tile, a line each."""
    columns = ("design", "row", "ms", "before", "cycles a tile", "before, cycles")
    files = of_kind(stored, "prefill-tried")
    several = are_several(file.gpu for file in files)
    return [
        Table(f"Tried{on_gpu_text(file.gpu, several)}", columns, lines, frozenset(columns[2:]))
        for file in files
        if (lines := list(_designs(file.data)))
    ]


def _designs(data: Mapping[str, Any]) -> Iterator[Row]:
    for design in data["designs"]:
        for name, subjects in design["rows"].items():
            if "skip" in subjects and "old" in subjects:
                new, old = subjects["skip"], subjects["old"]
                yield (
                    design["name"], name, f"{new['ms']:.3f}", f"{old['ms']:.3f}",
                    new.get("cycles_a_tile"), old.get("cycles_a_tile"),
                )  # fmt: skip


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _kernels(data: Mapping[str, Any]) -> Iterator[Row]:
    """Outputs of cases, by data. Units are those of bf16 at the root mean square of a row."""
    kernels, failed = data["kernels"], data["failed"]
    for name in _names(f.get("data") for f in (*kernels, *failed)):
        own = [k for k in kernels if k["data"] == name]
        worst = max((k["worst_bf16_ulp_of_row"] for k in own), default=None)
        yield (
            "outputs of kernels", name, sum(k["cases"] for k in own), *_bits(own),
            None if worst is None else f"{worst:.3g} bf16 ulp of the row",
            sum(f.get("data") == name for f in failed),
        )  # fmt: skip


def _tiles(tiles: Sequence[Finding]) -> Iterator[Row]:
    """By instruction and data. The bound is of what the sums of a tile's terms may lose."""
    groups: dict[tuple[str, str | None], list[Finding]] = {}
    for tile in tiles:
        name = str(tile["subject"]).partition(".")[0]
        groups.setdefault((name, tile.get("data")), []).append(tile)
    for (name, kind), own in sorted(groups.items(), key=lambda group: group[0][0]):
        shares = [
            t["worst_relative"] / t["bound"]
            for t in own
            if t.get("bound") and t.get("worst_relative") is not None
        ]
        yield (
            f"{name} tiles", kind, sum(t.get("tiles", 0) for t in own), *_bits(own),
            f"{max(shares):.3g} of the bound" if shares else None, _failed(own),
        )  # fmt: skip


def _functions(data: Mapping[str, Any]) -> Iterator[Row]:
    for name, is_bound in (("exact", True), ("approximate", False)):
        own = [f for f in data["functions"] if (f["ok"] is not None) == is_bound]
        if own:
            worst = max((w for f in own if (w := f.get("worst_ulp")) is not None), default=None)
            told = None if worst is None else f"{worst} ulp"
            yield "scalar instructions", name, len(own), *_bits(own), told, _failed(own)


def _names(found: Iterable[str | None]) -> list[str | None]:
    return list(dict.fromkeys(found))


def _bits(findings: Sequence[Finding]) -> tuple[int, int]:
    """(elements, those whose bits differ)."""
    return (
        sum(f.get("elements", 0) for f in findings),
        sum(f.get("different_bits", 0) for f in findings),
    )


def _failed(findings: Sequence[Finding]) -> int | None:
    """How many have failed; None where nothing is promised, and differences are only recorded."""
    if all(f["ok"] is None for f in findings):
        return None
    return sum(f["ok"] is False for f in findings)


def _said(data: Mapping[str, Any]) -> Iterator[str]:
    """What ran, and the names of what failed."""
    yield (
        f"Tasks: {data['done']} of {data['tasks']} done; cases skipped: {data['skipped']}; "
        f"instances that did not run: {', '.join(data['instances_that_did_not_run']) or 'none'}."
    )
    findings = (*data["failed"], *data["tiles"], *data["functions"])
    failed = _names(f["subject"] for f in findings if f["ok"] is False)
    if failed:
        yield f"Failed: {'; '.join(map(str, failed))}."
