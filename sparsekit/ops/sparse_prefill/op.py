"""sparse_prefill: attention of every query token over its own list of KV rows (MLA, h_kv = 1).

The interface is FlashMLA's `flash_mla_sparse_fwd`. Logarithms are natural; max_logits and lse do
not include the sink.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

from sparsekit.model import Call, Case, Op, Scalar, Tensor, Work

D_V = 512
D_QK = (512, 576)
# How sampling.lay_out lays out the columns of a list; mixed takes the others in turn.
LAYOUTS = (
    "mixed", "full", "interior", "leading_invalid", "trailing", "empty", "one_key", "duplicates",
)  # fmt: skip
_BF16_BYTES, _FP32_BYTES, _INT32_BYTES = 2, 4, 4
# Seed 1's ramp: min(p // 2, 1024) + 3 of 1152 columns are valid in row p.
RAMP_WIDTH, RAMP_LIMIT, RAMP_OFFSET = 1152, 1024, 3
RAMP_TOP = 1027  # of the other ramps, in as many columns
RAMPS = ("ramp", "ramp_saturating", "ramp_linear")


def ramp_columns(kind: str, row: int, rows: int) -> int:
    """How many leading columns of a row are valid in a ramp layout of so many rows."""
    if kind == "ramp":
        return min(row // 2, RAMP_LIMIT) + RAMP_OFFSET
    if kind == "ramp_saturating":
        return min(row + 1, RAMP_TOP)
    return 1 + (RAMP_TOP - 1) * row // max(rows - 1, 1)


def check(call: Call) -> str | None:
    """What is wrong with a call whose tensors fit one another."""
    scale = call.scalars["sm_scale"]
    if call.scalars["d_v"] != D_V:
        return f"d_v must be {D_V}, found {call.scalars['d_v']}"
    if wrong := _wrong_size(call.dims):
        return wrong
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        return f"sm_scale must be finite, found {scale}"
    return None


def check_case(case: Case) -> str | None:
    """What is wrong with sizes that a user changed."""
    return _wrong_size(case.dims)


def _wrong_size(dims: Mapping[str, int]) -> str | None:
    if dims["d_qk"] not in D_QK:
        return f"d_qk must be one of {D_QK}, found {dims['d_qk']}"
    if dims["h_kv"] != 1:
        return f"h_kv must be 1, found {dims['h_kv']}"
    return "h_q must be at least 1, found 0" if dims["h_q"] == 0 else None


def valid_columns(case: Case) -> int:
    """How many columns are valid in a ramp layout, over all rows of the call; in others all are."""
    s_q, topk, kind = case.dims["s_q"], case.dims["topk"], str(case.options["indices"])
    if kind not in RAMPS:
        return s_q * topk
    return sum(min(ramp_columns(kind, p, s_q), topk) for p in range(s_q))


def work(case: Case) -> Work:
    """FLOP over the valid columns; bytes with every input and output moved once."""
    s_q, s_kv, h_q, d_qk = (case.dims[n] for n in ("s_q", "s_kv", "h_q", "d_qk"))
    flop = 2 * valid_columns(case) * h_q * (d_qk + D_V)
    rows = min(s_kv, valid_columns(case))
    moved = s_q * h_q * (d_qk + D_V) * _BF16_BYTES + rows * d_qk * _BF16_BYTES
    moved += s_q * case.dims["topk"] * _INT32_BYTES + 2 * s_q * h_q * _FP32_BYTES
    return Work(flop, moved)


def _case(
    name: str, tags: str, s_q: int, s_kv: int, h_q: int, d_qk: int, topk: int, **options: object
) -> Case:
    dims = {"s_q": s_q, "s_kv": s_kv, "h_q": h_q, "h_kv": 1, "d_qk": d_qk, "topk": topk}
    known: dict[str, object] = {
        "indices": "random", "topk_length": "none", "sink": "none", "scale": d_qk**-0.5,
        "values": "normal", "q_pad": 0, "kv_pad": 0, "indices_pad": 0, "indices_offset": 0,
    }  # fmt: skip
    return Case(name, dims, tuple(tags.split()), {**known, **options}, seed=sum(name.encode()))


_PADDED = {"q_pad": 8, "kv_pad": 24, "indices_pad": 3, "indices_offset": 1}
_MIXED = {"indices": "mixed"}
_FAR_ROW_PAD = 40_000  # with 60,000 rows the last one lies past 2^31 elements
_HEADS = (
    (1, 576), (2, 512), (8, 512), (16, 576), (20, 512), (32, 576), (33, 512), (63, 576),
    (64, 512), (65, 576), (96, 512), (127, 512), (128, 576), (130, 576),
)  # fmt: skip
_TOKENS = (1, 2, 65, 65_535, 65_536)
_WIDTHS = (
    1, 2, 15, 31, 32, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 1000, 1027, 2047, 2048,
)  # fmt: skip

_MANY_TOKENS, _MANY_EMULATED = 65_535, 20


_EMULATED_ROWS = {1000: 2, 255: 4}  # of lists of so many columns or more; all of shorter ones


def _rows_for_emulator(topk: int) -> dict[str, int]:
    """So that a list of any width takes seconds a kernel."""
    rows = next((rows for columns, rows in _EMULATED_ROWS.items() if topk >= columns), None)
    return {} if rows is None else {"s_q": rows}


_SMOKE = (
    _case("small_512", "smoke sanitize", 4, 1500, 16, 512, 300, **_MIXED).with_emulated(
        s_q=7, h_q=32, topk=520
    ),
    _case(
        "small_576", "smoke sanitize", 5, 1500, 20, 576, 301, sink="special", **_MIXED, **_PADDED
    ).with_emulated(s_q=7, topk=521),
    _case(
        "length_576", "smoke sanitize", 9, 2500, 64, 576, 333, topk_length="hostile", **_MIXED
    ).with_emulated(s_q=4),
    _case("v32_64", "smoke", 64, 4096, 128, 576, 2048).with_emulated(s_q=1, topk=512),
    _case("model1_64", "smoke", 64, 4096, 64, 512, 512, sink="finite").with_emulated(s_q=2),
)
_SHAPES = (
    *(
        _case(f"heads_{h_q}", "corner", 3, 700, h_q, d_qk, 200, sink="special", **_MIXED, **_PADDED)
        for h_q, d_qk in _HEADS
    ),
    *(
        _case(
            f"topk_{topk}", "corner", 6, 2500, 16, D_QK[i % 2], topk, sink="finite",
            indices_offset=topk % 4, **_MIXED,
        ).with_emulated(**_rows_for_emulator(topk))
        for i, topk in enumerate(_WIDTHS)
    ),
    *(
        _case(
            f"length_{h_q}_{d_qk}", "corner smoke" if h_q == 8 else "corner", 24, 900, h_q, d_qk,
            65, sink="special", topk_length="hostile", **_MIXED,
        ).with_emulated(s_q=5)
        for h_q in (8, 64)
        for d_qk in D_QK
    ),
    *(
        _case(f"tokens_{n}", "corner", n, 300, 16, 512, 64, **_MIXED).with_emulated(
            **({} if n < _MANY_TOKENS else {"s_q": n - _MANY_TOKENS + _MANY_EMULATED})
        )
        for n in _TOKENS
    ),
    _case("few_rows", "corner", 8, 5, 16, 576, 200, indices="interior", sink="finite"),
    _case("no_rows", "corner", 4, 0, 16, 576, 20, indices="empty"),
    _case("no_columns", "corner", 4, 50, 16, 512, 0, sink="finite"),
    _case("no_tokens", "corner", 0, 50, 16, 576, 64),
    _case("far_rows", "corner", 4, 60_000, 16, 576, 256, kv_pad=_FAR_ROW_PAD),
)  # fmt: skip
_VALUES = (
    _case("one_key", "corner", 130, 600, 16, 576, 128, indices="one_key").with_emulated(s_q=8),
    _case("one_key_short", "corner", 40, 600, 64, 512, 33, indices="one_key").with_emulated(s_q=8),
    _case(
        "leading_invalid", "corner", 16, 600, 64, 576, 300, indices="leading_invalid"
    ).with_emulated(s_q=4),
    _case("interior", "corner", 16, 600, 64, 512, 640, indices="interior").with_emulated(s_q=4),
    _case("empty", "corner", 16, 600, 64, 576, 300, indices="empty", sink="special").with_emulated(
        s_q=4
    ),
    _case("duplicates", "corner", 16, 600, 16, 512, 200, indices="duplicates").with_emulated(s_q=4),
    _case("trailing", "corner", 16, 3000, 16, 576, 1152, indices="trailing").with_emulated(s_q=3),
    _case(
        "nan_listed", "corner", 12, 600, 16, 576, 100, indices="interior", values="nan"
    ).with_emulated(s_q=4),
    *(
        _case(
            name, "corner smoke", 12, 600, h_q, d_qk, 100, indices="interior", values="inf"
        ).with_emulated(s_q=2, s_kv=100, topk=10)
        for name, h_q, d_qk in (("inf_listed", 16, 512), ("inf_listed_576", 32, 576))
    ),
    _case("scale_zero", "corner", 4, 600, 16, 576, 100, scale=0.0, **_MIXED),
    _case("scale_negative", "corner", 4, 600, 16, 512, 100, scale=-0.7, **_MIXED),
    _case("scale_large", "corner", 4, 600, 16, 512, 100, scale=3.0, **_MIXED),
)
_SEED1 = {"s_q": 8192, "s_kv": 8192, "h_q": 64, "d_qk": 512, "topk": RAMP_WIDTH}
_LAYOUTS = ("ramp", "interior", "empty", "random")  # of seed 1's bitwise comparison


def _seed1_layouts() -> list[Case]:
    """Seed 1's 32 layouts: two of the four ways of sink and length a shape, in a half fraction."""
    cases = []
    for number, (h_q, d_qk, layout) in enumerate(product((64, 128), D_QK, _LAYOUTS)):
        for length in (False, True):
            sink = length != bool((number // len(_LAYOUTS) + number) % 2)
            name = f"layout_{layout}_h{h_q}_d{d_qk}" + "_sink" * sink + "_length" * length
            options = {
                "indices": layout, "sink": "finite" if sink else "none",
                "topk_length": "valid" if length else "none",
            }  # fmt: skip
            case = _case(name, "corner seed", 96, 4096, h_q, d_qk, 2048, **options)
            cases.append(case.with_emulated(s_q=2, topk=130))
    return cases


def _ramp(name: str, tags: str, kind: str) -> list[Case]:
    """A ramp padded with -1 to its width, without and with topk_length."""
    return [
        _case(name, tags, **_SEED1, indices=kind),
        _case(f"{name}_length", tags, **_SEED1, indices=kind, topk_length="valid"),
    ]


_PERF = (
    *_ramp("seed1_ramp", "perf seed", "ramp"),
    *_ramp("seed1_full", "perf seed", "random"),
    *_ramp("saturating_ramp", "perf", "ramp_saturating"),
    *_ramp("linear_ramp", "perf", "ramp_linear"),
    *(_case(f"v32_kv{n}", "perf", 4096, n, 128, 576, 2048) for n in (8192, 32768, 65536, 131072)),
    _case("h16_d576", "perf", 4096, 65536, 16, 576, 2048),
    _case("h64_d576", "perf", 4096, 32768, 64, 576, 2048),
    *(
        _case(f"h{h_q}_k{topk}", "perf", 4096, 65536, h_q, 512, topk)
        for h_q in (64, 128)
        for topk in (512, 1024, 2048)
    ),
    *(_case(f"short_{n}", "perf", n, 65536, 128, 576, 2048) for n in (1, 8, 64, 128)),
)

OP = Op(
    summary="Sparse MLA prefill over listed rows of kv; FlashMLA's interface.",
    inputs=(
        Tensor("q", ("s_q", "h_q", "d_qk"), ("bf16",), divisible_by=16, stride_divisible_by=8),
        Tensor("kv", ("s_kv", "h_kv", "d_qk"), ("bf16",), divisible_by=16, stride_divisible_by=8),
        Tensor("indices", ("s_q", "h_kv", "topk"), ("i32",)),
        Scalar("sm_scale", "float"),
        Scalar("d_v", "int", default=D_V),
        Tensor("attn_sink", ("h_q",), ("fp32",), optional=True),
        Tensor("topk_length", ("s_q",), ("i32",), optional=True),
    ),
    outputs=(
        Tensor("out", ("s_q", "h_q", "d_v"), ("bf16",)),
        Tensor("max_logits", ("s_q", "h_q"), ("fp32",)),
        Tensor("lse", ("s_q", "h_q"), ("fp32",)),
    ),
    check=check,
    check_case=check_case,
    known_values={
        "indices": ("random", *RAMPS, *LAYOUTS),
        "topk_length": ("none", "valid", "hostile"),
        "sink": ("none", "finite", "off", "special"),
        "values": ("normal", "nan", "inf"),
    },
    cases=(*_SMOKE, *_SHAPES, *_VALUES, *_seed1_layouts(), *_PERF),
    work=work,
    probes=("random", "zero_q"),
    batch="s_q",
)
