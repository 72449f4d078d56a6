"""The Hopper sparse prefill kernel for few heads on a GPU: times beside its alternatives.

    python tests/gpu/sparse_prefill_sm90_few.py -o docs/results/sparse_prefill_sm90_few-h200.json

At 8, 16 and 32 heads, interleaved in one process: the kernel, the two kernels that would take its
calls without it, and the kernel with one constant changed at a time. All is built first, at once.
Each first call is waited for with a limit, so that a hang ends the run and has a name; its results
are held against the portable kernel's, and an alternative's bits against the kernel's. Times as in
`sparse_prefill_sm90.py`. `--build-only` needs no GPU: registers and spills.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from sparse_prefill_sm90 import COPY_BYTES, EXPECTED_MATMUL_MS, ROOT, Inputs, Row, Subjects

import sparsekit
from sparsekit.cli.device import gpu_of
from sparsekit.runtime.environment import environment

KERNEL, COPY = "sparse_prefill_sm90_few", "sparse_prefill_sm90_few_alternatives"
HEADS = (8, 16, 32)
S_Q, S_KV, D_QK, TOPK = 4096, 32768, 576, 2048
GATHERED_BYTES = S_Q * TOPK * D_QK * 2
ROUNDS, QUICK_ROUNDS = 30, 10
WARM_S, QUICK_WARM_S = 3.0, 1.0
BUILD_LIMIT_S, CALL_LIMIT_S = 120, 10.0
EXIT_HUNG = 3
OTHERS = {"heads64": "cu/sparse_prefill_sm90:skip", "portable": "cu/sparse_prefill:skip_heads32"}

Constants = dict[str, int]
# Constants in place of the spec's, by name.
ALTERNATIVES: dict[str, Constants] = {
    "no_gather": {"GATHER": 0},  # wrong results: the products' ceiling
    "no_products": {"MULTIPLY": 0},  # wrong results: the gather's ceiling
    "chains_1": {"SCORE_CHAINS": 1},
    "q_half": {"Q_REGISTER_PAIRS": 9},
    "all_lanes_arrive": {"ARRIVING_LANES": 32},
    "ring_5": {"RING_UNITS": 5},
    "whole_tiles": {"UNIT_CHUNKS": 9, "RING_UNITS": 2},
    "l2_128b": {"L2_PREFETCH_BYTES": 128},
    "p_1": {"P_BUFFERS": 1},
}
# 32 heads have one chain and one buffer of P already; a second buffer costs a unit of the ring.
AT_32_HEADS: dict[str, Constants] = {
    **{n: c for n, c in ALTERNATIVES.items() if n not in ("chains_1", "p_1", "q_half")},
    "p_2_ring_5": {"P_BUFFERS": 2, "RING_UNITS": 5},
}
WRONG_RESULTS = ("no_gather", "no_products")
OTHER_BITS = (*WRONG_RESULTS, "chains_1")  # chains add up in another order


def alternatives_folder(folder: Path, chosen: dict[int, dict[str, Constants]]) -> Path:
    """A copy of the kernel whose variants are the alternatives, by heads, for the one d_qk."""
    copy = folder / COPY
    shutil.copytree(ROOT / "kernels_cu" / KERNEL, copy)
    spec = (copy / "spec.py").read_text()
    for name in {n for of in chosen.values() for constants in of.values() for n in constants}:
        assert f'"{name}":' in spec, f"the kernel has no constant {name}"
    variants = "".join(
        f'Variant("{n}_heads{h}", '
        f'{{"SKIP": 1, "HEADS": {h}, **_BASE, **_HEADS[{h}][0], **{c!r}}}),\n'
        for h, of in chosen.items()
        for n, c in of.items()
    )
    found = re.search(r"variants=\(\n.*?\n    \),\n    instances=\(.*?\),\n", spec, re.DOTALL)
    assert found is not None
    (copy / "spec.py").write_text(
        f"{spec[: found.start()]}variants=({variants}),\n"
        f'    instances=(Instance(constants={{"d_qk": {D_QK}}}),),\n{spec[found.end() :]}'
    )
    return copy


def build(references: list[str]) -> list[dict[str, Any]]:
    """Compiles all of them at once: what each takes. Exits where one does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "build.json"
        done = subprocess.run(
            [sys.executable, "-m", "sparsekit", "build", *references, "--arch", "9.0",
             "--format", "json", "-o", str(listed)],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=BUILD_LIMIT_S,
        )  # fmt: skip
        artifacts = json.loads(listed.read_text())["artifacts"] if listed.is_file() else []
    told = ("kernel", "variant", "registers", "spill_store_bytes", "local_bytes", "shared_bytes")
    for a in artifacts:
        for line in (*a["warnings"], a["error"]) if a["error"] else a["warnings"]:
            print(f"{a['kernel']}:{a['variant']} [{a['instance']}]: {line}", flush=True)
    if done.returncode:
        sys.exit(f"sparsekit build: {done.returncode}\n{done.stderr[-2000:]}")
    return [{k: a[k] for k in told} for a in artifacts if a["instance"] == f"d_qk{D_QK}"]


def subjects_of(heads: int, alternatives: dict[str, Constants], copy: Path) -> dict[str, Any]:
    """Operators by what they are called here."""
    references = {
        "kernel": f"cu/{KERNEL}:skip_heads{heads}", **OTHERS,
        **{n: f"cu/{COPY}:{n}_heads{heads}" for n in alternatives},
    }  # fmt: skip
    kernels = [copy] if alternatives else []
    return {n: sparsekit.load(reference, kernels=kernels) for n, reference in references.items()}


def ends(call: Callable[[], Any]) -> Any:
    """What the call returns, once it stands; None when it does not come to an end."""
    results, end = call(), torch.cuda.Event()
    end.record()
    deadline = time.monotonic() + CALL_LIMIT_S
    while not end.query():
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)
    return results


def same(results: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(results, others, strict=True))


def apart(results: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]) -> list[float]:
    """The largest differences of out, max_logits and lse."""
    pairs = zip(results, others, strict=True)
    return [float((a.float() - b.float()).abs().max()) for a, b in pairs]


def first_calls(heads: int, calls: dict[str, Callable[[], Any]]) -> list[dict[str, Any]] | str:
    """What came of each; the name of one that hangs."""
    found: dict[str, tuple[torch.Tensor, ...]] = {}
    checks = []
    for label in (*OTHERS, *(n for n in calls if n not in OTHERS)):
        results = ends(calls[label])
        if results is None:
            return label
        if label in OTHERS or label == "kernel":
            found[label] = results
        if label not in OTHERS:
            base = calls[label]() if label == "kernel" else found["kernel"]
            check = {
                "heads": heads, "subject": label, "same_bits": same(results, base),
                "from_portable": None
                if label in WRONG_RESULTS
                else apart(results, found["portable"]),
            }  # fmt: skip
            checks.append(check)
            wrong = not check["same_bits"] and label not in OTHER_BITS
            print(f"{'WRONG ' * wrong}{check}", flush=True)
    return checks


def rows(names: list[str], samples: dict[str, list[float]]) -> list[dict[str, Any]]:
    results = []
    for name in names:
        heads, label = name.split()
        ms = statistics.median(samples[name])
        low, _, high = statistics.quantiles(samples[name], n=4)
        base = statistics.median(samples[f"{heads} kernel"])
        row = {
            "heads": int(heads), "subject": label, "ms": ms, "quartiles_ms": [low, high],
            "ratio": ms / base, "gathered_tb_per_s": GATHERED_BYTES / ms / 1e9,
        }  # fmt: skip
        results.append(row)
        print(
            f"{heads:>2} heads {label:16} {ms:7.4f} ms  {row['ratio']:.3f} of the kernel  "
            f"{row['gathered_tb_per_s']:5.2f} TB/s if it gathers",
            flush=True,
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--heads", default=",".join(map(str, HEADS)))
    parser.add_argument("--without", default="", help="alternatives that are left out")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--build-only", action="store_true")
    asked = parser.parse_args()
    started = time.monotonic()
    chosen = {
        h: {
            n: c
            for n, c in (AT_32_HEADS if h == max(HEADS) else ALTERNATIVES).items()
            if n not in asked.without.split(",")
        }
        for h in map(int, asked.heads.split(","))
    }
    data: dict[str, Any] = {
        "schema": 1, "s_q": S_Q, "s_kv": S_KV, "d_qk": D_QK, "topk": TOPK, "checks": [],
    }  # fmt: skip

    def save(what: str) -> None:
        data["seconds"] = time.monotonic() - started
        asked.output.write_text(json.dumps(data, indent=1) + "\n")
        print(f"{what} after {data['seconds']:.1f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        copy = alternatives_folder(Path(folder), chosen)
        own = [f"cu/{KERNEL}:skip_heads{h}" for h in chosen]
        data["build"] = build(
            [*own, *OTHERS.values(), *([str(copy)] if any(chosen.values()) else [])]
        )
        for b in data["build"]:
            print(
                f"{b['kernel']}:{b['variant']:24} {b['registers']} registers, "
                f"{b['spill_store_bytes']} bytes spilled, {b['local_bytes']} local, "
                f"{b['shared_bytes']} shared",
                flush=True,
            )
        save("built")
        if asked.build_only:
            return

        data["environment"] = environment(gpu_of("cuda")[1])
        inputs, subjects, names = Inputs(), Subjects(), []
        for heads, alternatives in chosen.items():
            row = Row(f"{heads}", S_Q, S_KV, heads, D_QK, TOPK, None, None, None)
            arguments = inputs.of(row)
            calls = {
                label: lambda o=operator, a=arguments: o(**a)
                for label, operator in subjects_of(heads, alternatives, copy).items()
            }
            checks = first_calls(heads, calls)
            if isinstance(checks, str):
                data["hung"] = f"{heads} {checks}"
                save(f"{data['hung']} hangs; given up")
                os._exit(EXIT_HUNG)  # the only way past a kernel that does not end
            data["checks"] += checks
            subjects.calls |= {f"{heads} {label}": call for label, call in calls.items()}
            names += [f"{heads} {label}" for label in calls]
            save(f"{heads} heads: first calls")

    subjects.warm(names, QUICK_WARM_S if asked.quick else WARM_S)
    everything = ["matmul", "copy", *names]
    subjects.rounds(everything, 2)
    count = QUICK_ROUNDS if asked.quick else ROUNDS
    samples = subjects.rounds(everything, count)
    copy_ms = statistics.median(samples["copy"])
    data |= {
        "rounds": count, "matmul_ms": statistics.median(samples["matmul"]),
        "expected_matmul_ms": EXPECTED_MATMUL_MS,
        "copy_tb_per_s": 2 * COPY_BYTES / copy_ms / 1e9, "rows": rows(names, samples),
    }  # fmt: skip
    print(f"matmul {data['matmul_ms']:.3f} ms, copy {data['copy_tb_per_s']:.2f} TB/s", flush=True)
    save("done")


if __name__ == "__main__":
    main()
