"""Which code the artifacts in the emulated results are of: `emulated_code.json`, from the lock.

A key changes with any byte of the sources, a comment too, and then says no longer what the code is.
So after a run, before anything is changed: `python tests/unit/emulated_code.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_suffix(".json")
KERNELS = ("sparse_prefill_sm100", "sparse_prefill_sm120")


def emulated_entries() -> Iterator[tuple[str, str, str]]:
    """(key, the entry as the lock names it, case) of every launch in the results."""
    for kernel in KERNELS:
        file = ROOT / "docs" / "results" / f"{kernel}-emulated.json"
        for r in json.loads(file.read_text())["results"]:
            for c in r["coverage"]:
                name = f"{kernel}:{r['variant']} [{c['instance']}] {c['entry']}"
                yield c["key"], f"{name} {r['arch']} {r['toolchain']}", r["case"]


def locked_code() -> dict[str, str]:
    """sha256 of the instructions of each entry in the lock."""
    lock = json.loads((ROOT / "codegen.lock.json").read_text())
    return {name: facts["instructions_sha256"] for name, facts in lock["entries"].items()}


def _keys_of_today(arch: str, toolchain: str) -> set[str]:
    command = [
        sys.executable, "-m", "sparsekit", "build", *(f"cu/{k}" for k in KERNELS),
        "--arch", arch, "--toolchain", toolchain, "--instances", "all",
        "--dry-run", "--format", "json",
    ]  # fmt: skip
    told = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    return {job["key"] for job in json.loads(told.stdout)["jobs"]}


def main() -> None:
    """Write down the code of the keys that are today's; the others stay as they were told."""
    found = sorted({(key, name) for key, name, _ in emulated_entries()})
    today: set[str] = set()
    for arch, toolchain in {tuple(name.split()[-2:]) for _, name in found}:
        today |= _keys_of_today(arch, toolchain)
    known, lock = json.loads(FILE.read_text()) if FILE.exists() else {}, locked_code()
    code = {key: lock[name] if key in today else known.get(key) for key, name in found}
    FILE.write_text(json.dumps(code, indent=1) + "\n")
    for key, name in found:
        if code[key] is None:
            print(f"{name}: {key} is of other sources than today's; run its cases again")


if __name__ == "__main__":
    main()
