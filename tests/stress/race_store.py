"""Many processes on one store: 32 processes x 8 build references x 50 rounds, by default.

    python tests/stress/race_store.py [--processes 32] [--rounds 50]

Each round starts from an empty store; every process builds the same eight artifacts, then all
their bytes are compared and the store is searched for rubbish. Prints a line a round; exits 1 on a
fault.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "tests" / "fixtures" / "kernels"
REFERENCES = [f"{KERNELS}/scale_cu:plain", f"{KERNELS}/scale_cu:twice"]
ARCHS = "8.0;8.6;9.0;12.0"  # 2 variants x 4 archs = 8 artifacts


def one_round(store: Path, processes: int) -> str:
    """Build in all processes at once; returns the digest of the store's cubins."""
    command = [sys.executable, "-m", "sparsekit", "build", *REFERENCES, "--arch", ARCHS, "-j", "1"]
    env = {**os.environ, "SPARSEKIT_CACHE_DIR": str(store), "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for _ in range(processes)
    ]
    for process in running:
        _, err = process.communicate()
        if process.returncode != 0:
            sys.exit(f"a build failed with {process.returncode}: {err[-2000:]}")
        if "damaged" in err:
            sys.exit(f"a damaged entry was seen: {err[-2000:]}")
    verify = subprocess.run(
        [sys.executable, "-m", "sparsekit", "cache", "verify"], env=env, check=False
    )
    rubbish = [p.name for p in (store / "staging").iterdir()]
    entries = sorted(store.glob("v1/*/*"))
    if verify.returncode != 0 or rubbish or len(entries) != 8:
        sys.exit(f"verify {verify.returncode}, rubbish {rubbish}, {len(entries)} entries")
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(entry.name.encode() + (entry / "kernel.cubin").read_bytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=50)
    asked = parser.parse_args()
    digests: set[str] = set()
    for number in range(asked.rounds):
        store = Path(tempfile.mkdtemp(prefix="sparsekit-race-"))
        started = time.perf_counter()
        digests.add(one_round(store, asked.processes))
        shutil.rmtree(store)
        print(f"round {number + 1}: {time.perf_counter() - started:.1f} s", flush=True)
    if len(digests) != 1:
        sys.exit(f"the rounds gave {len(digests)} different sets of bytes")
    builds = asked.processes * asked.rounds
    print(f"{builds} builds of 8 references, one set of bytes: {digests.pop()}")


if __name__ == "__main__":
    main()
