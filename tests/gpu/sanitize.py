"""compute-sanitizer over every kernel, and over planted faults that it must report.

    python tests/gpu/sanitize.py -o docs/results/sanitizer-h200.json

Runs `sparsekit verify --bitwise --tag sanitize` under memcheck, racecheck, synccheck and initcheck,
then the faulty kernels of tests/fixtures. Exits 1 when something of ours is reported, or a planted
fault is not. torch's caching allocator is off, so that every tensor has bounds of its own.
racecheck credits an arrival on an mbarrier only with what its own lane wrote: kernels in which one
lane arrives for its warp run under it with all lanes arriving, as a copy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from sparsekit.cli.device import gpu_of
from sparsekit.discover import Catalog
from sparsekit.runtime.environment import environment

ROOT = Path(__file__).resolve().parents[2]
FAULTY = "tests/fixtures/kernels/scale_faulty"
ONE_LANE, ALL_LANES = '"ARRIVING_LANES": 1', '"ARRIVING_LANES": 32'
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# cuda.bindings asks older drivers for newer functions, which memcheck would count; what the driver
# answers to our calls is checked by the launcher.
OPTIONS = {"memcheck": ("--report-api-errors", "no")}
# Which tool must report which planted fault.
PLANTED = {"bounds": "memcheck", "race": "racecheck"}
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


@dataclass(frozen=True)
class Finding:
    """One run. reports: what the tool counted; expected: whether it had to count something."""

    subject: str
    tool: str
    command: str
    exit_code: int
    reports: int | None
    expected: bool
    tail: str

    @property
    def ok(self) -> bool:
        if self.expected:
            return bool(self.reports)
        return self.reports == 0 and self.exit_code == 0


def subjects(tool: str, copies: Path, glob: str) -> Iterator[tuple[str, str]]:
    """Kernels of that name that this GPU runs, each with the reference that the tool runs."""
    capability = torch.cuda.get_device_capability()
    for kernel in Catalog().kernels:
        if not kernel.targets_for(capability) or not fnmatchcase(kernel.qualified_name, glob):
            continue
        spec = (kernel.folder / "spec.py").read_text()
        if tool != "racecheck" or ONE_LANE not in spec:
            yield kernel.qualified_name, kernel.qualified_name
            continue
        copy = copies / f"{kernel.name}_all_lanes"
        shutil.copytree(kernel.folder, copy)
        (copy / "spec.py").write_text(spec.replace(ONE_LANE, ALL_LANES))
        yield f"{kernel.qualified_name}, all lanes arriving", str(copy)


def run(subject: str, tool: str, arguments: list[str], expected: bool) -> Finding:
    command = [
        "compute-sanitizer", "--tool", tool, *OPTIONS.get(tool, ()),
        "--target-processes", "application-only",
        sys.executable, "-m", "sparsekit", *arguments,
    ]  # fmt: skip
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": _path()}
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    told = _SUMMARY.findall(done.stdout)
    reports = int(next(n for n in told[-1] if n)) if told else None
    shown = " ".join(
        ["compute-sanitizer", "--tool", tool, *OPTIONS.get(tool, ()), "sparsekit", *arguments]
    )
    tail = "\n".join(done.stdout.splitlines()[-6:])
    return Finding(subject, tool, shown, done.returncode, reports, expected, tail)


def told() -> dict[str, object]:
    """GPU, driver and versions, the sanitizer's own among them."""
    _, gpu = gpu_of("cuda")
    tool = subprocess.run(
        ["compute-sanitizer", "--version"], capture_output=True, text=True, check=True
    )
    command = shlex.join(["python", "tests/gpu/sanitize.py", *sys.argv[1:]])
    version = tool.stdout.splitlines()[-1]
    return {**environment(gpu), "command": command, "compute_sanitizer": version}


def _path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("-j", "--jobs", type=int, default=6)
    parser.add_argument("--kernel", default="*", help="qualified names, such as cu/*_sm90*")
    asked = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        sys.exit("compute-sanitizer is not on PATH")
    copies = Path(tempfile.mkdtemp())
    jobs = [
        (name, tool, ["verify", reference, "--bitwise", "--tag", "sanitize"], False)
        for tool in TOOLS
        for name, reference in subjects(tool, copies, asked.kernel)
    ]
    for fault, tool in PLANTED.items():
        arguments = ["verify", f"{FAULTY}:{fault}", "--case", "small"]
        jobs.append((f"planted {fault}", tool, arguments, True))
    with ThreadPoolExecutor(asked.jobs) as pool:
        findings = list(pool.map(lambda job: run(*job), jobs))
    for finding in findings:
        status = "ok" if finding.ok else "FAILED"
        print(f"{status:6} {finding.tool:9} {finding.subject}: {finding.reports}")
        if not finding.ok:
            print(finding.tail)
    if asked.output:
        data = {
            "schema": 1,
            "kind": "sanitizer",
            "environment": told(),
            "findings": [{**asdict(f), "ok": f.ok} for f in findings],
        }
        asked.output.write_text(json.dumps(data, indent=1) + "\n")
    sys.exit(0 if all(f.ok for f in findings) else 1)


if __name__ == "__main__":
    main()
