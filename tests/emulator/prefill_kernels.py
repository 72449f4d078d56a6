"""Cases of sparse_prefill for kernels whose blocks walk items by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from kernel_checks import STRICTEST, code_that_never_runs
from own_kernel import OwnKernel
from sync_mutants import Survey, Why, survey_kernel

from sparsekit.model import Case

_MIXED = {"indices": "mixed", "sink": "special", "q_pad": 8, "kv_pad": 24, "indices_offset": 1}
# s_q 7: every layout of `mixed` once; of 520 columns one key stands more than 512 before the end.
CASES = {
    "mixed": ({"s_q": 7, "s_kv": 600, "topk": 520}, {**_MIXED, "scale": 0.5}),
    "one tile each": ({"s_q": 14, "s_kv": 60, "topk": 20}, {"indices": "mixed", "scale": 0.5}),
    "short": ({"s_q": 3, "s_kv": 100, "topk": 90}, {"indices": "mixed", "scale": 0.5}),
    # The second of three items of a block has two tiles, so that Q of the third comes early.
    "two tiles": ({"s_q": 5, "s_kv": 100, "topk": 70}, {"indices": "mixed", "scale": 0.5}),
    # A block has five items and more, and some have to be scanned.
    "many": ({"s_q": 11, "s_kv": 200, "topk": 130}, {"indices": "mixed", "scale": 0.5}),
    # Nor do rows end within 256 columns of topk.
    "far ends": ({"s_q": 14, "s_kv": 400, "topk": 400}, {"indices": "mixed", "scale": 0.5}),
    # A block has more than 32 items: the lengths of some are found in the loop.
    "batches": ({"s_q": 70, "s_kv": 60, "topk": 140}, {"indices": "mixed", "scale": 0.5}),
    "batches with lengths": (
        {"s_q": 70, "s_kv": 60, "topk": 12},
        {"indices": "mixed", "topk_length": "hostile", "scale": 0.5},
    ),
    "length": (
        {"s_q": 11, "s_kv": 300, "topk": 130},
        {**_MIXED, "topk_length": "hostile", "scale": -0.7},
    ),
    "not finite": ({"s_q": 3, "s_kv": 150, "topk": 70}, {"indices": "interior", "values": "inf"}),
    "no numbers": ({"s_q": 3, "s_kv": 150, "topk": 70}, {"indices": "interior", "values": "nan"}),
    "no rows": ({"s_q": 3, "s_kv": 0, "topk": 70}, {"indices": "empty"}),
    "no columns": ({"s_q": 3, "s_kv": 20, "topk": 0}, {"sink": "finite"}),
}
MUTATED = ({"s_q": 5, "s_kv": 400, "topk": 330}, {"indices": "mixed", "scale": 0.5})
# Several items of a tile each: a block has four, and Q comes before the last reader may be done.
SHORT = ({"s_q": 9, "s_kv": 100, "topk": 60}, {"indices": "random", "scale": 0.5})
Sizes = tuple[dict[str, int], dict[str, object]]


def make_case(kernel: OwnKernel, name: str, heads: int, d_qk: int) -> Case:
    dims, options = CASES[name]
    return kernel.case("small_512", {**dims, "h_q": heads, "d_qk": d_qk}, **options)


def cases_of_op(kernel: OwnKernel, patterns: Iterable[str], heads: int, rows: int) -> list[Case]:
    """The op's own cases of these names or tags as they are emulated, of at least so many heads
    and at most so many rows."""
    wanted = [
        case.for_emulator() for case in kernel.op.cases
        if any(p in case.tags or fnmatchcase(case.name, p) for p in patterns)
    ]  # fmt: skip
    assert wanted
    return [
        replace(
            case,
            dims={
                **case.dims,
                "h_q": max(case.dims["h_q"], heads),
                "s_q": min(case.dims["s_q"], rows),
            },
        )
        for case in wanted
    ]


def never_runs(kernel: OwnKernel, heads: int, d_qk: int, more: Iterable[Sizes] = ()) -> list[str]:
    """The blocks of code, as PTX, that no case reaches. more: cases beside CASES."""
    return code_that_never_runs(kernel, _cases(kernel, heads, d_qk, (*CASES.values(), *more)))


def surveyed(
    kernel: OwnKernel, heads: int, d_qk: int, why_redundant: Why, more: Iterable[Sizes] = ()
) -> Survey:
    """Every synchronisation taken away. more: cases for what MUTATED does not miss."""
    cases = _cases(kernel, heads, d_qk, (MUTATED, *more))
    return survey_kernel(kernel, cases, why_redundant, STRICTEST)


def _cases(kernel: OwnKernel, heads: int, d_qk: int, sizes: Iterable[Sizes]) -> list[Case]:
    return [
        kernel.case("small_512", {**dims, "h_q": heads, "d_qk": d_qk}, **options)
        for dims, options in sizes
    ]
