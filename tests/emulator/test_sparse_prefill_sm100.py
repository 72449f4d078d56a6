"""The Blackwell kernel on cases of its own: several items a block, one block and pairs."""

from __future__ import annotations

import re

import pytest
import torch
from own_kernel import OwnKernel
from sync_mutants import executed, mutants

from sparsekit.emulator import CHECKS, STRICT_CHECKS, Schedule

ARCH = "sm_100a"
VARIANTS = ("skip", "noskip", "skip_pair", "noskip_pair")
STRICTEST = [*CHECKS, *STRICT_CHECKS]
LAZY, EAGER = Schedule("lazy"), Schedule("eager")
SEEDS = 20
_MIXED = {"indices": "mixed", "sink": "special", "q_pad": 8, "kv_pad": 24, "indices_offset": 1}
# s_q 7: every layout of `mixed` once; of 520 columns one key stands more than 512 before the end.
CASES = {
    "mixed": ({"s_q": 7, "s_kv": 600, "topk": 520}, {**_MIXED, "scale": 0.5}),
    "short": ({"s_q": 3, "s_kv": 100, "topk": 90}, {"indices": "mixed", "scale": 0.5}),
    "length": ({"s_q": 5, "s_kv": 300, "topk": 130}, {**_MIXED, "topk_length": "hostile"}),
    "not finite": ({"s_q": 3, "s_kv": 150, "topk": 70}, {"indices": "interior", "values": "inf"}),
    "no rows": ({"s_q": 3, "s_kv": 0, "topk": 70}, {"indices": "empty"}),
    "no columns": ({"s_q": 3, "s_kv": 20, "topk": 0}, {"sink": "finite"}),
}


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("sm100-store")


@pytest.fixture(scope="session")
def kernel(store):
    kernels: dict[str, OwnKernel] = {}

    def of(variant: str) -> OwnKernel:
        if variant not in kernels:
            kernels[variant] = OwnKernel(f"cu/sparse_prefill_sm100:{variant}", ARCH, store)
        return kernels[variant]

    return of


def make_case(kernel: OwnKernel, variant: str, d_qk: int, name: str):
    """Heads that leave some of the last block's without any."""
    dims, options = CASES[name]
    heads = 90 if variant.endswith("_pair") else 20
    return kernel.case("small_512", {**dims, "h_q": heads, "d_qk": d_qk}, **options)


def bits(outputs: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: t.contiguous().view(torch.uint8).numpy().tobytes() for name, t in outputs.items()}


def right_and_clean(kernel, variant, d_qk, name, schedules):
    own = kernel(variant)
    case = make_case(own, variant, d_qk, name)
    found = []
    for schedule in schedules:
        run = own.run(case, schedule, STRICTEST)
        assert run.faults == [], schedule
        assert run.wrong == {}, schedule
        found.append(bits(run.outputs))
    assert all(one == found[0] for one in found)
    return found[0], run


@pytest.mark.parametrize(("variant", "d_qk"), [("skip", 576), ("skip_pair", 512)])
def test_right_and_clean_in_short(kernel, variant, d_qk):
    right_and_clean(kernel, variant, d_qk, "short", [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize("base", ["noskip", "noskip_pair"])
@pytest.mark.parametrize("name", CASES)
def test_right_clean_and_the_same_with_and_without_skip(kernel, base, d_qk, name):
    without, _ = right_and_clean(kernel, base, d_qk, name, [LAZY, EAGER])
    with_skip, _ = right_and_clean(kernel, base.removeprefix("no"), d_qk, name, [LAZY, EAGER])
    assert with_skip == without


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["skip", "skip_pair"])
def test_any_schedule_gives_the_same(kernel, variant):
    schedules = [LAZY, *(Schedule("random", seed) for seed in range(SEEDS))]
    right_and_clean(kernel, variant, 576, "mixed", schedules)


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_block_of_code_runs(kernel, variant, d_qk):
    left: set[tuple[int, int]] | None = None
    for name in CASES:
        run = kernel(variant).run(make_case(kernel(variant), variant, d_qk, name))
        uncovered = {(u.line, u.last_line) for r in run.reports for u in r.uncovered}
        left = uncovered if left is None else left & uncovered
    assert left == set()


LAST_HALF = 4  # products of the second half of the rows in the last P V
MUTATED = ({"s_q": 5, "s_kv": 400, "topk": 330}, {"indices": "mixed", "scale": 0.5})


MEETING = r"\tbar\.sync \t0;|barrier\.cluster\."  # of all threads of a block or pair
MOST_EXCUSED = 7  # of 61 and 75
NEARBY = 8  # lines


def why_redundant(instruction: str, line: int, text: str) -> str | None:
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


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["skip", "skip_pair"])
def test_every_synchronisation_is_missed(kernel, variant):
    own = kernel(variant)
    dims, options = MUTATED
    heads = 90 if variant.endswith("_pair") else 20
    case = own.case("small_512", {**dims, "h_q": heads, "d_qk": 576}, **options)
    text = own.ptx(case)
    (clean,) = own.run(case).reports
    silent, excused = [], 0
    for line, instruction, mutant in mutants(text):
        if not executed(line, clean):
            continue
        run = own.run(case, checks=STRICTEST, edit=lambda _, mutant=mutant: mutant)
        if not run.faults:
            silent += [] if why_redundant(instruction, line, text) else [f"{line}: {instruction}"]
            excused += 1
    assert silent == []
    assert excused <= MOST_EXCUSED
