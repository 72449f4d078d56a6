"""The Hopper sparse prefill kernel on a GPU: bits, verification, sanitizers, times of every row.

    python tests/gpu/sparse_prefill_sm90.py -o docs/results/sparse_prefill_sm90-h200.json

Steps, each with its own limit, so that a hang costs little: `verify` and `verify --bitwise` on the
smoke cases, skip against noskip on rows of the table, the times, the structural alternatives of
ALTERNATIVES on some rows, then compute-sanitizer. `--quick` leaves the sanitizers out, `--rows`
chooses rows by a pattern. Times: the card is warm, then rounds that interleave every row, a bf16
matmul of 8192^3 and a copy of 4 GiB, shuffled; L2 is overwritten before each sample; the kernels
are replayed from graphs, so that no call of Python is in a sample; medians.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import sparsekit
from sparsekit.cli.device import gpu_of
from sparsekit.runtime.environment import environment

ROOT = Path(__file__).resolve().parents[2]
KERNEL = "sparse_prefill_sm90"
FEW, MOST_FEW_HEADS = "sparse_prefill_sm90_few", 32  # what calls of few heads are run by
WARM_S, ROUNDS = 20.0, 60
ALTERNATIVE_ROUNDS = 25
MATMUL_SIZE, COPY_BYTES, FLUSH_BYTES = 8192, 4 << 30, 256 << 20
EXPECTED_MATMUL_MS, MATMUL_TOLERANCE = 1.603, 0.02
D_V = 512
OUTPUTS = ("out", "max_logits", "lse")
VERIFY_LIMIT_S, SANITIZE_LIMIT_S = 150, 200

# Constants that replace the spec's, by name; each is built and timed beside it.
ALTERNATIVES: dict[str, dict[str, int]] = {
    "store_4": {"STORE_CHUNK": 4},
    "store_8": {"STORE_CHUNK": 8},
    "announce_6": {"ANNOUNCE_CHUNK": 6},
    "announce_8": {"ANNOUNCE_CHUNK": 8},
    "p_once": {"P_BUFFERS": 1, "STORE_CHUNK": 4, "ANNOUNCE_CHUNK": 6},
    "early_16": {"EARLY_WEIGHTS": 16},
    "late_weights": {"EARLY_WEIGHTS": 0},
    "prefetch_q": {"PREFETCH_Q": 1},
    "no_prefetch_q": {"PREFETCH_Q": 0},
    "swap_slots": {"SWAP_SLOTS": 1},
    "all_lanes_arrive": {"ARRIVING_LANES": 32},
    "l2_128b": {"L2_PREFETCH_BYTES": 128},
    "no_proxy_fence": {"PROXY_FENCE": 0},  # not allowed by PTX: what the fences cost
    "no_softmax": {"SOFTMAX": 0},  # wrong results: the ceiling of this structure
}
SAME_BITS_ROWS = ("v32_kv8192", "h64_k512", "seed1_full", "seed1_ramp", "h16_d576")
ALTERNATIVE_ROWS = (
    "v32_kv8192",
    "v32_kv131072",
    "h64_k512",
    "h64_k2048",
    "seed1_full",
    "seed1_ramp",
)


BUT = """
def _but(constants):
    return tuple(
        Override({**o.constants, **constants}, o.capabilities, o.instance) for o in _WHERE
    )

"""


@dataclass(frozen=True)
class Row:
    """One row of the table; times in ms. valid: all, ramp (seed 1's), saturating."""

    name: str
    s_q: int
    s_kv: int
    h_q: int
    d_qk: int
    topk: int
    flashmla_ms: float | None
    reach_ms: float | None
    aim_ms: float | None
    valid: str = "all"
    with_length: bool = False

    def lengths(self) -> torch.Tensor:
        token = torch.arange(self.s_q)
        if self.valid == "ramp":
            return ((token // 2).clamp(max=1024) + 3).clamp(max=self.topk)
        if self.valid == "saturating":
            return (token + 1).clamp(max=1027)
        return torch.full((self.s_q,), self.topk)

    def flop(self) -> int:
        return 2 * int(self.lengths().sum()) * self.h_q * (self.d_qk + D_V)


_SEED1 = (8192, 8192, 64, 512, 1152)
ROWS = (
    Row("v32_kv8192", 4096, 8192, 128, 576, 2048, 3.985, 3.70, 3.40),
    Row("v32_kv32768", 4096, 32768, 128, 576, 2048, 4.195, 3.90, 3.45),
    Row("v32_kv131072", 4096, 131072, 128, 576, 2048, 4.719, 4.40, 3.95),
    Row("h64_d576", 4096, 32768, 64, 576, 2048, 2.210, 2.05, 1.80),
    Row("h64_k512", 4096, 65536, 64, 512, 512, 0.649, 0.55, 0.47),
    Row("h64_k1024", 4096, 65536, 64, 512, 1024, 1.200, 1.08, 0.95),
    Row("h64_k2048", 4096, 65536, 64, 512, 2048, 2.259, 2.08, 1.85),
    Row("h128_k512", 4096, 65536, 128, 512, 512, 1.228, 1.05, 0.95),
    Row("h128_k1024", 4096, 65536, 128, 512, 1024, 2.216, 2.02, 1.80),
    Row("h128_k2048", 4096, 65536, 128, 512, 2048, 4.178, 3.85, 3.45),
    Row("seed1_full", *_SEED1, 2.329, 2.12, 1.90),
    Row("seed1_full_length", *_SEED1, 2.290, 2.10, 1.88, with_length=True),
    Row("seed1_ramp", *_SEED1, 2.141, 1.76, 1.51, valid="ramp"),
    Row("seed1_ramp_length", *_SEED1, 1.957, 1.76, 1.51, valid="ramp", with_length=True),
    Row("saturating", *_SEED1, 2.150, 1.88, 1.61, valid="saturating"),
    Row("saturating_length", *_SEED1, 2.150, 1.88, 1.61, valid="saturating", with_length=True),
    Row("h8_d576", 4096, 32768, 8, 576, 2048, None, 1.55, 1.35),
    Row("h16_d576", 4096, 32768, 16, 576, 2048, None, 1.55, 1.35),
    Row("h32_d576", 4096, 32768, 32, 576, 2048, None, 1.75, None),
)


class Inputs:
    """Random data of one shape, shared by the rows that have it."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int, int], torch.Tensor] = {}

    def normal(self, what: str, rows: int, columns: int) -> torch.Tensor:
        key = (what, rows, columns)
        if key not in self._made:
            random_bits = torch.Generator("cuda").manual_seed(len(self._made))
            self._made[key] = torch.randn(
                (rows, columns), generator=random_bits, device="cuda", dtype=torch.bfloat16
            )
        return self._made[key]

    def of(self, row: Row) -> dict[str, Any]:
        """Indices: unique in a token, unsorted, over all of s_kv; -1 past its length."""
        q = self.normal("q", row.s_q * row.h_q, row.d_qk).view(row.s_q, row.h_q, row.d_qk)
        kv = self.normal("kv", row.s_kv, row.d_qk).view(row.s_kv, 1, row.d_qk)
        chosen = torch.Generator("cuda").manual_seed(1)
        step = 256  # tokens at a time, for memory
        indices = torch.empty((row.s_q, row.topk), dtype=torch.int32, device="cuda")
        for first in range(0, row.s_q, step):
            keys = torch.rand((step, row.s_kv), generator=chosen, device="cuda")
            listed = keys.topk(row.topk, dim=1, sorted=False).indices
            order = torch.rand(listed.shape, generator=chosen, device="cuda").argsort(1)
            indices[first : first + step] = listed.gather(1, order)[: row.s_q - first]
        lengths = row.lengths().cuda()
        columns = torch.arange(row.topk, device="cuda")
        indices[columns >= lengths[:, None]] = -1
        return {
            "q": q, "kv": kv, "indices": indices[:, None, :], "sm_scale": row.d_qk**-0.5,
            "topk_length": lengths.to(torch.int32) if row.with_length else None,
        }  # fmt: skip


def timed(work: Any) -> float:
    """Milliseconds between two events around the work."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


class Subjects:
    """What is timed: name to a call without arguments."""

    def __init__(self) -> None:
        self.calls: dict[str, Any] = {}
        self.kept: list[Any] = []  # what graphs read and write
        left = torch.randn((MATMUL_SIZE,) * 2, device="cuda", dtype=torch.bfloat16)
        right, product = torch.randn_like(left), torch.empty_like(left)
        source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_(0, 256)
        target = torch.empty_like(source)
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self.calls["matmul"] = lambda: torch.matmul(left, right, out=product)
        self.calls["copy"] = lambda: target.copy_(source)

    def warm(self, names: list[str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for name in names:
                self.calls[name]()
            torch.cuda.synchronize()

    def rounds(self, names: list[str], count: int) -> dict[str, list[float]]:
        order, samples = random.Random(1), {name: [] for name in names}
        for _ in range(count):
            for name in order.sample(names, len(names)):
                self._flush.zero_()
                samples[name].append(timed(self.calls[name]))
        return samples


def command(arguments: list[str], limit_s: float) -> dict[str, Any]:
    """A process's exit code and last lines; None: it ran past the limit, which a hang does."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=limit_s,
        )  # fmt: skip
        code, tail = done.returncode, done.stdout.splitlines()[-8:]
    except subprocess.TimeoutExpired as late:
        code, tail = None, (late.stdout or b"").decode().splitlines()[-8:]
    shown = " ".join(a.replace(sys.executable, "python") for a in arguments)
    result = {"command": shown, "exit_code": code, "seconds": time.monotonic() - started}
    print(f"{shown}: {code} after {result['seconds']:.0f} s", flush=True)
    print("  " + "\n  ".join(tail), flush=True)
    return {**result, "tail": tail}


def alternatives_folder(folder: Path, alternatives: dict[str, dict[str, int]]) -> Path:
    """A copy of the kernel whose variants are the alternatives."""
    copy = folder / f"{KERNEL}_alternatives"
    shutil.copytree(ROOT / "kernels_cu" / KERNEL, copy)
    spec = (copy / "spec.py").read_text()
    variants = "".join(
        f'Variant({n!r}, {{"SKIP": 1, **_BASE, **{c!r}}}, overrides=_but({c!r})),\n'
        for n, c in alternatives.items()
    )
    found = re.search(r"variants=\((.*?)\n    \),\n    instances", spec, re.DOTALL)
    assert found is not None
    spec = spec[: found.start()] + f"variants=({variants}),\n    instances" + spec[found.end() :]
    (copy / "spec.py").write_text(spec.replace("\nENTRY =", BUT + "\nENTRY =", 1))
    return copy


def same_bits(inputs: Inputs, rows: list[Row]) -> list[dict[str, Any]]:
    """skip against noskip, and skip against itself, on whole rows of the table."""
    results = []
    for row in rows:
        skip, noskip = skip_and_noskip(row).values()
        arguments = inputs.of(row)
        first, other, again = skip(**arguments), noskip(**arguments), skip(**arguments)
        torch.cuda.synchronize()
        same = [
            all(torch.equal(a, b) for a, b in zip(first, pair, strict=True))
            for pair in (other, again)
        ]
        finite = all(bool(torch.isfinite(x).all()) for x in first)
        results.append({"row": row.name, "noskip": same[0], "again": same[1], "finite": finite})
        print(f"bits {results[-1]}", flush=True)
    return results


Operators = Callable[[Row], dict[str, Any]]


@functools.cache
def loaded(reference: str) -> Any:
    return sparsekit.load(reference)


def skip_and_noskip(row: Row) -> dict[str, Any]:
    """Of the kernel that a call of the op takes."""
    few = row.h_q <= MOST_FEW_HEADS
    kernel, heads = (FEW, f"_heads{row.h_q}") if few else (KERNEL, "")
    return {v: loaded(f"cu/{kernel}:{v}{heads}") for v in ("skip", "noskip")}


def times(
    subjects: Subjects, rows: list[Row], operators: Operators, inputs: Inputs, count: int,
    warm_s: float,
) -> dict[str, list[float]]:  # fmt: skip
    """Samples by `row variant`, and of the matmul and the copy. operators: of a row, by variant."""
    names = ["matmul", "copy"]
    for row in rows:
        arguments = inputs.of(row)
        for variant, operator in operators(row).items():
            outputs = dict(zip(OUTPUTS, operator(**arguments), strict=True))
            arguments |= outputs  # one set for all
            operator.prepare(**arguments)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                operator(**arguments)
            name = f"{row.name} {variant}"
            subjects.calls[name] = graph.replay
            names.append(name)
        subjects.kept.append(arguments)
    torch.cuda.synchronize()
    subjects.warm(names[2:], warm_s)
    subjects.rounds(names, 3)
    samples = subjects.rounds(names, count)
    for name in names[2:]:
        del subjects.calls[name]
    subjects.kept.clear()
    return samples


def table(rows: list[Row], samples: dict[str, list[float]], scale: float) -> list[dict[str, Any]]:
    def scaled(value: float | None) -> float | None:
        return None if value is None else value * scale

    results = []
    for row in rows:
        ms = statistics.median(samples[f"{row.name} skip"])
        result = {
            "name": row.name, "s_q": row.s_q, "s_kv": row.s_kv, "h_q": row.h_q, "d_qk": row.d_qk,
            "topk": row.topk, "kernel": FEW if row.h_q <= MOST_FEW_HEADS else KERNEL,
            "ms": ms, "flashmla_ms": scaled(row.flashmla_ms),
            "reach_ms": scaled(row.reach_ms), "aim_ms": scaled(row.aim_ms),
            "noskip_ms": statistics.median(samples[f"{row.name} noskip"]),
            "tflops": row.flop() / ms / 1e9,
        }  # fmt: skip
        results.append(result)
        print(
            f"{row.name:18} {ms:7.4f} ms  noskip {result['noskip_ms']:7.4f}  "
            f"FlashMLA {result['flashmla_ms']}  reach {result['reach_ms']}  "
            f"aim {result['aim_ms']}  {result['tflops']:.0f} TFLOP/s",
            flush=True,
        )
    return results


def alternatives(subjects: Subjects, rows: list[Row], inputs: Inputs) -> dict[str, float]:
    """Medians by row and name, of the kernel and of ALTERNATIVES, in a run of their own."""
    with tempfile.TemporaryDirectory() as folder:
        kernels = [alternatives_folder(Path(folder), ALTERNATIVES)]
        name = f"cu/{KERNEL}_alternatives"
        other = {n: sparsekit.load(f"{name}:{n}", kernels=kernels) for n in ALTERNATIVES}
        samples = times(
            subjects, rows, lambda row: {"skip": skip_and_noskip(row)["skip"], **other}, inputs,
            ALTERNATIVE_ROUNDS, 2.0,
        )  # fmt: skip
    medians = {n: statistics.median(s) for n, s in samples.items()}
    for subject, ms in medians.items():
        print(f"{subject:40} {ms:.4f} ms", flush=True)
    return medians


def sanitizers() -> list[dict[str, Any]]:
    """The kernel under each tool, on the smallest cases."""
    return [
        command(
            ["compute-sanitizer", "--tool", tool, "--target-processes", "application-only",
             "--report-api-errors", "no", sys.executable, "-m", "sparsekit", "verify",
             f"cu/{KERNEL}", "--bitwise", "--tag", "sanitize"]
            if tool == "memcheck"
            else ["compute-sanitizer", "--tool", tool, "--target-processes", "application-only",
                  sys.executable, "-m", "sparsekit", "verify", f"cu/{KERNEL}", "--bitwise",
                  "--tag", "sanitize"],
            SANITIZE_LIMIT_S,
        )
        for tool in ("memcheck", "racecheck", "synccheck", "initcheck")
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rows", default="*")
    parser.add_argument("--quick", action="store_true", help="no sanitizers")
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--no-alternatives", action="store_true")
    asked = parser.parse_args()
    rows = [r for r in ROWS if fnmatch.fnmatch(r.name, asked.rows)]
    told = environment(gpu_of("cuda")[1])
    data: dict[str, Any] = {
        "schema": 1, "kind": "prefill-rows", "environment": told, "checks": [],
    }  # fmt: skip

    def save() -> None:
        asked.output.write_text(json.dumps(data, indent=1) + "\n")

    sparsekit_verify = [sys.executable, "-m", "sparsekit", "verify", f"cu/{KERNEL}"]
    if not asked.no_verify:
        first = command([*sparsekit_verify, "--case", "small_*"], VERIFY_LIMIT_S)
        data["checks"].append(first)
        if first["exit_code"] is None:
            save()
            sys.exit("the kernel hangs")
        data["checks"].append(command(sparsekit_verify, VERIFY_LIMIT_S))
        data["checks"].append(command([*sparsekit_verify, "--bitwise"], VERIFY_LIMIT_S))
        save()

    inputs = Inputs()
    by_name = {r.name: r for r in ROWS}
    data["bits"] = same_bits(inputs, [by_name[n] for n in SAME_BITS_ROWS])
    save()
    subjects = Subjects()
    samples = times(subjects, rows, skip_and_noskip, inputs, ROUNDS, WARM_S)
    matmul_ms = statistics.median(samples["matmul"])
    ratio = matmul_ms / EXPECTED_MATMUL_MS
    scale = ratio if abs(ratio - 1) > MATMUL_TOLERANCE else 1.0
    copy_ms = statistics.median(samples["copy"])
    data |= {
        "matmul_ms": matmul_ms, "scale_of_columns": scale, "rounds": ROUNDS,
        "copy_tb_per_s": 2 * COPY_BYTES / copy_ms / 1e9, "rows": table(rows, samples, scale),
    }  # fmt: skip
    print(f"matmul {matmul_ms:.3f} ms, columns times {scale:.3f}", flush=True)
    save()

    if not asked.no_alternatives:
        chosen = [r for r in rows if r.name in ALTERNATIVE_ROWS]
        data["alternatives"] = alternatives(subjects, chosen, inputs)
        save()
    if not asked.quick:
        data["sanitizers"] = sanitizers()
        save()


if __name__ == "__main__":
    main()
