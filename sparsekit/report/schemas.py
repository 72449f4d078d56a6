"""The shape of each kind of result file, as far as pages are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from sparsekit.model.bench import BenchResult, Ceilings, Interval, Mode, Reading, Timing
from sparsekit.model.profile import Count, ProfileResult
from sparsekit.report.shape import (
    AMOUNT,
    COUNT,
    FLAG,
    NUMBER,
    POSITIVE,
    REAL,
    TEXT,
    Listed,
    Mapped,
    Maybe,
    Record,
    Shape,
)

_MAYBE_TEXT, _MAYBE_FLAG, _MAYBE_COUNT = Maybe(TEXT), Maybe(FLAG), Maybe(COUNT)
_MAYBE_NUMBER, _MAYBE_AMOUNT = Maybe(NUMBER), Maybe(AMOUNT)


def _read_as(
    kind: type, required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None
) -> Record:
    """What is made into that dataclass: it takes no other names than those of its fields."""
    return Record(required, optional or {}, only={f.name for f in fields(kind)})


def _texts(*names: str) -> dict[str, Shape]:
    return dict.fromkeys(names, TEXT)


ENVIRONMENT = Record({}, {
    **dict.fromkeys(
        ("gpu", "driver_version", "power.limit", "clocks.sm", "clocks.max.sm", "commit", "command",
         "time", "watch"),
        _MAYBE_TEXT,
    ),
    "emulated": _MAYBE_FLAG, "dirty": _MAYBE_FLAG, "others": Maybe(Listed(TEXT)),
    "versions": Maybe(Mapped(_MAYBE_TEXT)), "ptxas": Maybe(Mapped(TEXT)),
})  # fmt: skip

INTERVAL = _read_as(Interval, {"low": NUMBER, "high": NUMBER})
CEILINGS = _read_as(Ceilings, {"matmul_tflops": POSITIVE, "copy_gbps": POSITIVE})
MODE = _read_as(
    Mode,
    {
        **_texts("protocol", "method", "l2"),
        **dict.fromkeys(("calls", "copies", "rounds", "iterations"), COUNT),
    },
    {"note": _MAYBE_TEXT},
)
READING = _read_as(
    Reading,
    {"reasons": Listed(TEXT)},
    dict.fromkeys(("sm_clock_mhz", "power_w", "temperature_c"), _MAYBE_NUMBER),
)
TIMING = _read_as(
    Timing,
    {
        **_texts("label", "kernel", "variant"),
        "interval_s": Maybe(INTERVAL), "ratio_interval": Maybe(INTERVAL),
        "samples_s": Listed(Listed(AMOUNT)),
    },
    {
        **dict.fromkeys(("toolchain", "arch", "key", "verdict", "problem"), _MAYBE_TEXT),
        **dict.fromkeys(("tflops", "gbps", "matmul_share", "copy_share", "ratio"), _MAYBE_AMOUNT),
        "time_s": Maybe(POSITIVE), "below_resolution": FLAG, "same_bits": _MAYBE_FLAG,
        "output_sha256": Mapped(TEXT),
    },
)  # fmt: skip
BENCH_RESULT = _read_as(
    BenchResult,
    {
        **_texts("op", "case", "gpu"),
        "base": _MAYBE_TEXT, "mode": Maybe(MODE), "timings": Listed(TIMING),
        "control_interval": Maybe(INTERVAL), "readings": Listed(READING), "cautions": Listed(TEXT),
    },
    {
        "flop": _MAYBE_COUNT, "bytes": _MAYBE_COUNT, "control": _MAYBE_NUMBER, "discarded": COUNT,
        "reason": _MAYBE_TEXT,
    },
)  # fmt: skip
PROFILE_COUNT = _read_as(Count, {"value": AMOUNT, "source": TEXT})
PROFILE_RESULT = _read_as(
    ProfileResult,
    {
        **_texts("op", "case", "gpu", "label", "kernel"),
        "entries": Listed(TEXT), "dropped": Listed(TEXT), "counts": Mapped(PROFILE_COUNT),
    },
    {
        "stalls": Mapped(AMOUNT), "report": _MAYBE_TEXT, "problem": _MAYBE_TEXT,
        "flop": _MAYBE_COUNT, "bytes": _MAYBE_COUNT,
    },
)  # fmt: skip
_OUTPUT = Record({"ok": FLAG, "sha256": TEXT, "max_abs": _MAYBE_AMOUNT}, {"problem": _MAYBE_TEXT})
_VERIFIED = Record({
    **_texts("op", "kernel", "variant", "case", "against"),
    "arch": _MAYBE_TEXT, "reason": _MAYBE_TEXT, "ok": _MAYBE_FLAG, "skipped": FLAG, "runs": COUNT,
    "launches": COUNT, "schedules": Listed(TEXT), "outputs": Mapped(_OUTPUT),
})  # fmt: skip
_LOADS = Maybe(Mapped(Mapped(COUNT)))
_INSPECTED = Record(
    {
        **dict.fromkeys(("kernel", "variant", "arch", "toolchain", "entry"), _MAYBE_TEXT),
        **dict.fromkeys(("registers", "spill_store_bytes", "shared_bytes"), _MAYBE_COUNT),
        "ptx_loads": _LOADS, "sass_loads": _LOADS,
    },
    {"problem": _MAYBE_TEXT},
)  # fmt: skip
_SANITIZED = Record({**_texts("subject", "tool"), "reports": COUNT, "expected": FLAG, "ok": FLAG})
_CONTROLLED = Record(
    {"what": TEXT, "verdicts": Mapped(COUNT), "ok": FLAG},
    {"method": _MAYBE_TEXT, "ratios": Maybe(Listed(NUMBER))},
)
# Worst distances are not finite where one side is not.
_COMPARED = Record(
    {"subject": TEXT, "ok": _MAYBE_FLAG},
    {
        **dict.fromkeys(("tiles", "elements", "different_bits"), COUNT),
        **dict.fromkeys(("worst_relative", "bound", "worst_ulp"), Maybe(REAL)),
        "data": _MAYBE_TEXT,
    },
)
_KERNEL = Record({
    "data": TEXT, "worst_bf16_ulp_of_row": REAL,
    **dict.fromkeys(("cases", "elements", "different_bits"), COUNT),
})  # fmt: skip
_PREFILL_ROW = Record({
    **_texts("name", "kernel"), "ms": AMOUNT, "tflops": AMOUNT,
    **dict.fromkeys(("flashmla_ms", "reach_ms", "aim_ms"), _MAYBE_AMOUNT),
})  # fmt: skip
_PAGED_ROW = Record({
    **_texts("name", "kernel"), **dict.fromkeys(("us", "seed2_us", "reach_us", "aim_us"), AMOUNT),
})  # fmt: skip
_TRIED = Record({"ms": AMOUNT}, {"cycles_a_tile": _MAYBE_NUMBER})
_DESIGN = Record({"name": TEXT, "rows": Mapped(Record({}, {"skip": _TRIED, "old": _TRIED}))})


def _file(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Record:
    surrounding = {"environment": Maybe(ENVIRONMENT), "said": _MAYBE_TEXT}
    return Record(required, {**surrounding, **(optional or {})})


SCHEMAS: dict[str, Record] = {
    "bench": _file({"results": Listed(BENCH_RESULT)}, {"ceilings": Maybe(CEILINGS)}),
    "verify": _file({"results": Listed(_VERIFIED)}),
    "inspect": _file(
        {"entries": Listed(_INSPECTED)}, {"failed": Listed(Record(_texts("job", "error")))}
    ),
    "profile": _file({"results": Listed(PROFILE_RESULT)}, {"ceilings": Maybe(CEILINGS)}),
    "run": _file({}),
    "sanitizer": _file({"findings": Listed(_SANITIZED)}),
    "control": _file({"findings": Listed(_CONTROLLED)}),
    "against-emulator": _file({
        **dict.fromkeys(("tasks", "done", "skipped"), COUNT),
        "instances_that_did_not_run": Listed(TEXT), "kernels": Listed(_KERNEL),
        **dict.fromkeys(("failed", "tiles", "functions"), Listed(_COMPARED)),
    }),
    "prefill-rows": _file({
        "rounds": COUNT, "matmul_ms": AMOUNT, "scale_of_columns": NUMBER,
        "rows": Listed(_PREFILL_ROW),
    }),
    "prefill-tried": _file({"designs": Listed(_DESIGN)}),
    "paged-rows": _file({"rows": Listed(_PAGED_ROW)}),
}  # fmt: skip
