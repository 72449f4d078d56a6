"""All our kernels and variants on the CPU: right, clean, and every block of code reached.

`sparsekit build --arch ... && sparsekit verify --device cpu`, and what must hold of its report: for
one arch, where kernels with tests of their own run few cases, and in the slow tests for all.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT

from sparsekit import load
from sparsekit.__main__ import run as run_command
from sparsekit.discover import Catalog
from sparsekit.model.arch import parse_archs
from sparsekit.model.artifact import Artifact
from sparsekit.store.layout import ENTRIES
from sparsekit.store.open import open_store

MOST_COPIES_OF_Q = 2  # blocks
MOST_OF_THE_SCAN = 3  # blocks
MOST_ROW_S = 0.5


def code_of(lines: list[str], first: int, last: int) -> list[str]:
    """The instructions of lines first ... last of PTX."""
    stripped = [line.strip() for line in lines[first - 1 : last]]
    return [line for line in stripped if line and not line.startswith(("$", "//", "."))]


def copies_q(lines: list[str], first: int, last: int) -> bool:
    """A step of the copy of Q to shared memory, or what makes its addresses."""
    code = code_of(lines, first, last)
    if any(line.startswith("cp.async.cg.shared.global.L2::128B") for line in code):
        return True
    return all(line.startswith(("mov.", "add.s64")) for line in code) and any(
        "dynamic_smem" in line for line in code
    )


def scans_nothing(lines: list[str], first: int, last: int) -> bool:
    """What follows the scan's vote: an index loaded anew, or the end of a warp written."""
    code = code_of(lines, first, last)
    small = (
        "add.s",
        "mul.wide.s32",
        "cvt.s64.s32",
        "shl.b64",
        "setp.",
        "@%p",
        "bra.uni",
        "mov.u32",
    )
    kinds = (*small, "ld.global.nc.s32", "st.shared.u32")
    votes = any("redux.sync.max.s32" in line for line in lines[max(first - 60, 0) : first])
    return votes and all(line.startswith(kinds) for line in code)


def only_moves(lines: list[str], first: int, last: int) -> bool:
    return all(line.startswith(("mov.", "cvt.")) for line in code_of(lines, first, last))


def is_jump(lines: list[str], first: int, last: int) -> bool:
    return first == last and "bra.uni" in lines[first - 1]


UNREACHABLE = (
    ("sparse_prefill", "sparse_prefill_fwd", scans_nothing,
     "the scan stands in the score role too, whose warps look at no index"),
    ("sparse_prefill", "sparse_prefill_fwd", copies_q,
     "a score thread makes a fixed number of copies of Q: code for other numbers (the "
     "rest of a loop unrolled by four, or that loop itself, or steps of threads that are no score "
     "threads) never runs"),
    ("sparse_attn_paged", "sparse_attn_paged_decode_merge", only_moves,
     "the loop over splits has at least one: a launch has max(1, ...) of them"),
    ("gated_pool", "gated_pool_fwd", is_jump,
     "what remains of rows taken two at a time is one: its loop never goes round"),
)  # fmt: skip
"""(kernel, entry, what its block looks like, why nothing reaches it)."""
# The smoke cases have neither many heads nor long rows; these have tests with cases that do.
REACHED_ELSEWHERE = {
    "sparse_attn_paged_bf16": "test_sparse_attn_paged_bf16.py",
    "sparse_attn_paged_sm90": "test_sparse_attn_paged_sm90.py",
    "sparse_prefill_sm90": "test_sparse_prefill_sm90.py",
    "sparse_prefill_sm90_few": "test_sparse_prefill_sm90_few.py",
    "sparse_prefill_sm90_split": "test_sparse_prefill_sm90_split.py",
    "sparse_prefill_sm100": "test_sparse_prefill_sm100.py",
    "gated_pool_staged": "test_gated_pool_staged.py",
    "sparse_attn_paged_decode_sm90": "test_sparse_attn_paged_decode_sm90.py",
    "sparse_attn_paged_fp8": "test_sparse_attn_paged_fp8.py",
    "sparse_attn_paged_fp8_decode_sm90": "test_sparse_attn_paged_fp8.py",
    "sparse_prefill_sm120": "test_sparse_prefill_sm120.py",
}
# Of each op with such kernels.
FEW_CASES = (
    "length_8_*", "prefill_small", "rows_9", "decode_16_nan", "few_columns_m1", "pages_of_7_64",
)  # fmt: skip


@pytest.fixture(
    scope="session", params=["9.0", pytest.param("all", marks=pytest.mark.slow)], ids=str
)
def archs(request):
    return request.param


def sparsekit(context: pytest.MonkeyPatch, *command: str) -> int:
    context.setattr(sys, "argv", ["sparsekit", *command])
    return run_command()


@pytest.fixture(scope="session")
def store(archs, shipped_store, tmp_path_factory):
    """Of what we ship, what is built for the archs and nothing else."""
    own, listed = tmp_path_factory.mktemp("own-kernels"), tmp_path_factory.mktemp("report") / "b"
    with pytest.MonkeyPatch.context() as context:
        context.setenv("SPARSEKIT_CACHE_DIR", str(shipped_store))
        code = sparsekit(context, "build", "--arch", archs, "--format", "json", "-o", str(listed))
    assert code == 0, listed.read_text()[-3000:]
    for artifact in json.loads(listed.read_text())["artifacts"]:
        entry = Path(ENTRIES, artifact["key"][:2], artifact["key"])
        shutil.copytree(shipped_store / entry, own / entry)
    return own


@pytest.fixture(scope="session")
def report(archs, store, tmp_path_factory):
    """The report of everything, made once; for one arch, of few cases of kernels with own tests."""
    names = {k.qualified_name: k.name in REACHED_ELSEWHERE for k in Catalog().kernels}
    all_cases = [name for name, elsewhere in names.items() if not elsewhere]
    few_cases = [name for name, elsewhere in names.items() if elsewhere]
    few = [part for case in FEW_CASES for part in ("--case", case)]
    asked = [[*all_cases, "-j1"], [*few_cases, *few]]  # processes translate anew
    asked = [[]] if archs == "all" else asked
    file = tmp_path_factory.mktemp("report") / "verify.json"
    codes, results, coverage = [], [], []
    with pytest.MonkeyPatch.context() as context:
        context.setenv("SPARSEKIT_CACHE_DIR", str(store))
        context.chdir(ROOT)
        for of in asked:
            codes.append(
                sparsekit(
                    context, "verify", *of, "--device", "cpu", "--format", "json", "-o", str(file)
                )
            )
            told = json.loads(file.read_text())
            results += told["results"]
            coverage += told["coverage"]
    return max(codes), {"results": results, "coverage": coverage}


def test_right_and_clean(report):
    code, told = report
    wrong = [
        f"{r['kernel']}:{r['variant']} {r['arch']} {r['case']}: {r['reason']}"
        for r in told["results"]
        if r["ok"] is False
    ]
    assert wrong == []
    assert code == 0
    assert all(r["schedules"][0] == "lazy" for r in told["results"] if r["ok"])
    assert any("eager" in r["schedules"] for r in told["results"])


def test_every_variant_ran_for_every_arch(archs, report):
    _, told = report
    ran = {(r["kernel"], r["variant"], r["arch"]) for r in told["results"] if r["ok"]}
    wanted = set()
    for kernel in Catalog().kernels:
        asked = {r.capability for r in parse_archs(archs)}
        capabilities = dict.fromkeys(
            a.compute_capability for a in kernel.archs if a.compute_capability in asked
        )
        for capability in capabilities:
            first = next(a for a in kernel.archs if a.compute_capability == capability)
            wanted |= {(kernel.name, v.name, str(first)) for v in kernel.variants}
    assert ran == wanted


def test_what_was_skipped_has_a_reason(report):
    _, told = report
    for result in told["results"]:
        if result["skipped"]:
            assert re.search(
                "not built|for one query a row|"
                "for calls of (at most (8|16|32)|more than 64) heads|for more than 16 heads",
                result["reason"],
            )


def test_every_block_is_reached_or_named(archs, report, store):
    _, told = report
    artifacts: dict[str, Artifact] = {}
    opened = open_store(store, print)
    unexplained = []
    default = 0
    for entry in told["coverage"]:
        kernel = next(k for k in Catalog().kernels if k.name == entry["kernel"])
        instance = next(i for i in kernel.instances if i.name == entry["instance"])
        assert instance.default  # nothing else is built
        default += 1
        if entry["kernel"] in REACHED_ELSEWHERE:
            continue
        artifact = artifacts.setdefault(entry["key"], opened.get(entry["key"]))
        lines = artifact.ptx(entry["entry"]).splitlines()
        for block in entry["uncovered"]:
            named = [
                why
                for name, of_entry, looks, why in UNREACHABLE
                if (name, of_entry) == (entry["kernel"], entry["entry"])
                and looks(lines, block["line"], block["last_line"])
            ]
            if not named:
                unexplained.append(
                    f"{entry['kernel']}:{entry['variant']} {entry['arch']} [{entry['instance']}] "
                    f"{entry['entry']} lines {block['line']}-{block['last_line']}"
                )
    assert default > (50 if archs == "all" else 5)
    assert unexplained == []


def test_few_blocks_are_excused(report):
    """In particular the O rescale is reached, which only a growing maximum executes."""
    _, told = report
    most = {
        "sparse_prefill": MOST_COPIES_OF_Q + MOST_OF_THE_SCAN,
        "sparse_attn_paged": 1,
        "gated_pool": 1,
    }
    for entry in told["coverage"]:
        if entry["kernel"] not in REACHED_ELSEWHERE:
            assert len(entry["uncovered"]) <= most[entry["kernel"]], entry
    prefill = {e["variant"] for e in told["coverage"] if e["kernel"] == "sparse_prefill"}
    assert prefill == {"skip", "skip_heads32", "noskip"}


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_a_row_is_quick(arch, shipped_store):
    """One token of 64 heads, topk 256 and d 512, all checks on: within MOST_ROW_S of CPU time.

    Parsing and translation, of the first call alone, are not part of it. The fastest of several
    calls, for other work on the machine slows CPU time too.
    """
    row = load("cu/sparse_prefill:skip", cache_dir=shipped_store, device="cpu", arch=arch)
    random = torch.Generator().manual_seed(1)
    q, kv = (
        torch.randn(shape, generator=random).bfloat16() for shape in ((1, 64, 512), (1500, 1, 512))
    )
    indices = torch.randint(0, 1500, (1, 1, 256), generator=random, dtype=torch.int32)
    times_s = []
    for _ in range(4):
        start_s = time.process_time()
        row(q, kv, indices, 0.04)
        times_s.append(time.process_time() - start_s)
    assert min(times_s[1:]) < MOST_ROW_S


def test_what_is_reached_elsewhere_has_a_test_of_it():
    for kernel, file in REACHED_ELSEWHERE.items():
        text = (ROOT / "tests" / "emulator" / file).read_text()
        assert re.search(rf"(cu|triton)/{kernel}[:\"]", text)
        assert "def test_every_block_of_code_runs" in text
