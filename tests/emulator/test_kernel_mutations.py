"""Detection power on the kernels that every arch runs: each synchronisation taken away in turn."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
from own_kernel import OwnKernel
from sync_mutants import LEAST_REPORTED, survey_kernel


@dataclass(frozen=True)
class Subject:
    """case: one of the op's, in other sizes. least: mutants that run."""

    reference: str
    arch: str
    case: str
    least: int
    least_reported: float = LEAST_REPORTED
    dims: dict[str, int] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)


PREFILL = {"s_q": 1, "s_kv": 200, "h_q": 64, "topk": 170}
PAGED = {"m": 2, "d": 64, "n_win": 90, "n_cmp": 200, "topk": 170, "n_window": 40}
LSE = {"return_lse": True}
BY_TRITON = 0.75  # it commits twice, and waits once more behind its loop
SUBJECTS = (
    Subject("cu/sparse_prefill:skip", "sm_80", "small_512", 12, dims=PREFILL),
    Subject("cu/sparse_prefill:skip", "sm_120", "small_512", 12, dims=PREFILL),
    Subject("sparse_attn_paged:hint16", "sm_80", "prefill_small", 12, BY_TRITON, PAGED, LSE),
    Subject("sparse_attn_paged:hint16", "sm_80", "decode_small", 12, BY_TRITON, {"d": 64}, LSE),
)
SYNCHRONISES = re.compile(r"\bbar(?:rier)?\.|cp\.async|mbarrier|fence|shared")


def why_redundant(line: int, instruction: str, text: str) -> str | None:
    """Why a kernel is right without the instruction; None where it needs it."""
    later = "\n".join(text.splitlines()[line:])
    following = re.search(r"cp\.async\.(commit_group|wait_group)", later)
    if "commit" in instruction and following and following[1] == "commit_group":
        return "the next commit closes the group too"
    if "mma.sync" not in later and "wait_group" not in later:
        return "Triton drains behind its loop, where nothing is in flight or read any more"
    return None


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("mutated-store")


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: f"{s.reference} {s.arch} {s.case}")
def test_every_synchronisation_is_missed(subject, store):
    kernel = OwnKernel(subject.reference, subject.arch, store)
    case = kernel.case(subject.case, subject.dims, **subject.options)
    survey_kernel(kernel, [case], why_redundant, None).check(subject.least, subject.least_reported)


def test_one_kernel_has_nothing_to_synchronise(store):
    """gated_pool: a thread has columns of its own."""
    kernel = OwnKernel("gated_pool:unroll2", "sm_90a", store)
    (text,) = kernel.texts(kernel.case("r8_d128", {}))
    assert not SYNCHRONISES.search(text)
