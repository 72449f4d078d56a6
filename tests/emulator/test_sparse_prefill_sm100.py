"""The Blackwell kernel on cases of its own: several items a block, one block and pairs."""

from __future__ import annotations

import re

import pytest
from kernel_checks import EAGER, LAZY, SEEDS, right_and_clean
from own_kernel import OwnKernel
from prefill_kernels import CASES, cases_of_op, make_case, never_runs, surveyed

from sparsekit.emulator import Schedule

VARIANTS = ("skip", "noskip", "skip_pair", "noskip_pair")
LAST_HALF = 4  # products of the second half of the rows in the last P V
MEETING = r"\tbar\.sync \t0;|barrier\.cluster\."  # of all threads of a block or pair
NEARBY = 8  # lines
CORNERS = (
    "interior", "empty", "duplicates", "nan_*", "inf_*", "scale_*", "leading_invalid", "one_key*",
    "few_rows", "no_*", "topk_*",
)  # fmt: skip
MOST_ROWS = 4  # of a corner case; one with 64 heads as it is takes a minute


def why_redundant(line: int, instruction: str, text: str) -> str | None:
    """Why nothing goes wrong without an instruction, or nothing tells; None where it is needed."""
    lines = text.splitlines()
    before = "\n".join(lines[max(line - 1 - NEARBY, 0) : line - 1])
    behind, after = "\n".join(lines[line : line + NEARBY]), "\n".join(lines[line:])
    if "tcgen05.fence" in instruction and re.search(MEETING, before + behind):
        return "nobody has used the tensor memory yet, or only its release comes after"
    if "tcgen05.commit" in instruction and "tcgen05.mma" not in after.partition(";")[2]:
        return "the last tile: nobody gathers into the slot again" if "commit" in after else None
    if "tcgen05.commit" in instruction and after.count("tcgen05.mma") <= LAST_HALF:
        return "the same for the first half of the slot"
    if "bar.sync" in instruction and "st.shared" not in after:
        return "nothing is exchanged any more"
    return None


def heads_of(variant: str) -> int:
    """Heads that leave some of the last block's without any."""
    return 90 if variant.endswith("_pair") else 20


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    kernels: dict[str, OwnKernel] = {}
    store = tmp_path_factory.mktemp("sm100-store")

    def of(variant: str) -> OwnKernel:
        if variant not in kernels:
            kernels[variant] = OwnKernel(f"cu/sparse_prefill_sm100:{variant}", "sm_100a", store)
        return kernels[variant]

    return of


@pytest.mark.parametrize(("variant", "d_qk"), [("skip", 576), ("skip_pair", 512)])
def test_right_and_clean_in_short(kernel, variant, d_qk):
    own = kernel(variant)
    right_and_clean(own, make_case(own, "short", heads_of(variant), d_qk), [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize("base", ["noskip", "noskip_pair"])
@pytest.mark.parametrize("name", CASES)
def test_right_clean_and_the_same_with_and_without_skip(kernel, base, d_qk, name):
    found = [
        right_and_clean(kernel(v), make_case(kernel(v), name, heads_of(base), d_qk), [LAZY, EAGER])
        for v in (base, base.removeprefix("no"))
    ]
    assert found[0] == found[1]


def least_heads(base: str) -> int:
    return heads_of(base) if base.endswith("_pair") else 1


@pytest.mark.slow
@pytest.mark.parametrize("base", ["noskip", "noskip_pair"])
@pytest.mark.parametrize("pattern", CORNERS)
def test_the_corner_cases_of_the_op(kernel, base, pattern):
    for case in cases_of_op(kernel(base), [pattern], least_heads(base), MOST_ROWS):
        found = [
            right_and_clean(kernel(v), case, [LAZY, EAGER]) for v in (base, base.removeprefix("no"))
        ]
        assert found[0] == found[1], case.name


@pytest.mark.slow
@pytest.mark.parametrize("base", ["noskip", "noskip_pair"])
def test_the_smoke_cases_under_any_schedule(kernel, base):
    schedules = [LAZY, EAGER, *(Schedule("random", seed) for seed in range(SEEDS))]
    for case in cases_of_op(kernel(base), ["smoke"], least_heads(base), MOST_ROWS):
        found = [
            right_and_clean(kernel(v), case, schedules) for v in (base, base.removeprefix("no"))
        ]
        assert found[0] == found[1], case.name


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["skip", "skip_pair"])
def test_any_schedule_gives_the_same(kernel, variant):
    schedules = [LAZY, *(Schedule("random", seed) for seed in range(SEEDS))]
    own = kernel(variant)
    right_and_clean(own, make_case(own, "mixed", heads_of(variant), 576), schedules)


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_block_of_code_runs(kernel, variant, d_qk):
    assert never_runs(kernel(variant), heads_of(variant), d_qk) == []


@pytest.mark.slow
def test_every_synchronisation_is_missed(kernel):
    one, two = (
        surveyed(kernel(variant), heads_of(variant), 576, why_redundant)
        for variant in ("skip", "skip_pair")
    )
    (one + two).check(140)
