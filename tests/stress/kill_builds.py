"""Builds killed at random moments: 200 kills over all phases, by default.

    python tests/stress/kill_builds.py [--kills 200] [--seed 0]

After every kill the store is verified, and every few kills a build must complete and leave no
rubbish. Prints a summary of the phases that were hit; exits 1 on a fault.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "tests" / "fixtures" / "kernels"
COMMAND = [
    sys.executable, "-m", "sparsekit", "build", f"{KERNELS}/scale_cu", f"{KERNELS}/scale_triton",
    "--arch", "8.0;9.0;12.0",
]  # fmt: skip
EMPTIED = 0.6  # how often a build starts from nothing
LONGEST_S = 6.0  # a whole build from nothing takes about this long on two cores
BUILD_EVERY = 10


def phase(store: Path) -> str:
    """What the store shows of the moment that was hit."""
    staging = store / "staging"
    if not staging.is_dir():
        return "before the store"
    staged = [names(folder) for folder in staging.iterdir() if folder.is_dir()]
    if any("SHA256SUMS" in files for files in staged):
        return "publishing"
    if staged:
        return "writing" if any(staged) else "compiling"
    return "between jobs" if any(store.glob("v1/*/*")) else "starting"


def names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:  # published or discarded in this moment
        return []


def wait(process: subprocess.Popen[bytes], store: Path, chance: random.Random) -> None:
    """Let the build go on: until a phase that is short is seen, or for a random time."""
    target = chance.choice(["writing", "publishing", None, None])
    deadline = time.monotonic() + (LONGEST_S if target else chance.uniform(0.02, LONGEST_S))
    while process.poll() is None and time.monotonic() < deadline:
        if target is None:
            time.sleep(0.005)
        elif phase(store) == target:
            return


def run(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparsekit", *args], env=env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    store = Path(tempfile.mkdtemp(prefix="sparsekit-kill-"))
    env = {**os.environ, "SPARSEKIT_CACHE_DIR": str(store), "PYTHONPATH": str(ROOT)}
    hit: Counter[str] = Counter()
    for number in range(1, asked.kills + 1):
        if chance.random() < EMPTIED:
            shutil.rmtree(store / "v1", ignore_errors=True)
        process = subprocess.Popen(
            COMMAND, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait(process, store, chance)
        process.send_signal(signal.SIGKILL)
        process.wait()
        hit[phase(store)] += 1
        if run(env, "cache", "verify").returncode != 0:
            sys.exit(f"kill {number} left a bad entry in {store}")
        if number % BUILD_EVERY == 0:
            done = run(env, *COMMAND[3:])
            if done.returncode != 0 or "damaged" in done.stderr:
                sys.exit(f"the build after kill {number} failed: {done.stderr[-2000:]}")
            rubbish = [p.name for p in (store / "staging").iterdir()]
            if rubbish:
                sys.exit(f"the build after kill {number} left {rubbish}")
            shutil.rmtree(store / "v1")
            print(f"{number} kills: {dict(hit)}", flush=True)
    shutil.rmtree(store)
    print(f"{asked.kills} kills, every next build complete, no bad entry: {dict(hit)}")


if __name__ == "__main__":
    main()
