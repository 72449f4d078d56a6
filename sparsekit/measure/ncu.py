"""Running ncu, and what to do where it is missing or not allowed.

Source: Nsight Compute CLI, "Command Line Options"; ERR_NVGPUCTRPERM as NVIDIA explains it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsekit.errors import SparsekitError
from sparsekit.measure.metrics import Metric, known_metrics
from sparsekit.measure.ncu_page import ProfiledLaunch, Unreadable, read_raw_page

_LIMIT_S, _QUERY_LIMIT_S = 500.0, 60.0
_UNKNOWN = re.compile(r"[Ff]ailed to find metric[s]?:?\s+([\w.]+)")
_COUNTER = re.compile(r"^([a-z0-9]+__\w+)\b", re.MULTILINE)
_NO_PERMISSION = (
    "ncu may not read this GPU's counters (ERR_NVGPUCTRPERM): run it as root, or have the "
    "administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0; in a container add "
    "--cap-add=SYS_ADMIN"
)

# Runs a command within a limit in seconds: its exit code and all that it printed.
Run = Callable[[Sequence[str], float], tuple[int, str]]


class NotProfiled(SparsekitError):
    """ncu counted nothing; the message says why and what to do."""


def run_command(command: Sequence[str], limit_s: float) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=limit_s, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout


@dataclass(frozen=True)
class Profiled:
    """launches: of the one call. dropped: our names of metrics that are not to be had here."""

    launches: tuple[ProfiledLaunch, ...]
    metrics: Mapping[str, Metric]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class Ncu:
    """The profiler at a path. run: how its commands are run, handed in by a test."""

    path: Path
    run: Run = run_command

    def counters(self, chip: str | None) -> frozenset[str]:
        """The counters that it lists for a chip; empty when it cannot be asked."""
        if chip is None:
            return frozenset()
        code, text = self.run([str(self.path), "--query-metrics", "--chips", chip], _QUERY_LIMIT_S)
        return frozenset(_COUNTER.findall(text)) if code == 0 else frozenset()

    def profile(
        self, program: Sequence[str], wanted: Mapping[str, Metric], chip: str | None, report: Path
    ) -> Profiled:
        """Count what the program launches between cudaProfilerStart and Stop.

        report: where ncu's own file goes. A metric that ncu does not know is dropped, and told.
        Raises NotProfiled.
        """
        metrics, dropped = known_metrics(wanted, self.counters(chip))
        while True:
            command = [
                str(self.path), "--force-overwrite", "--export", str(report), "--clock-control",
                "none", "--profile-from-start", "off", "--target-processes", "all", "--metrics",
                ",".join(m.name for m in metrics.values()), *program,
            ]  # fmt: skip
            code, text = self.run(command, _LIMIT_S)
            unknown = set(_UNKNOWN.findall(text))
            lost = [n for n, m in metrics.items() if m.name in unknown or m.counter in unknown]
            if not lost:
                break
            dropped = (*dropped, *lost)
            metrics = {n: m for n, m in metrics.items() if n not in lost}
        if problem := _problem(code, text, report):
            raise NotProfiled(problem)
        return Profiled(self._launches(report), metrics, dropped)

    def _launches(self, report: Path) -> tuple[ProfiledLaunch, ...]:
        command = [
            str(self.path), "--import", str(report), "--csv", "--page", "raw", "--print-units",
            "base",
        ]  # fmt: skip
        _, text = self.run(command, _LIMIT_S)
        try:
            launches = read_raw_page(text)
        except Unreadable as error:
            raise NotProfiled(f"{report} does not read: {error}") from error
        if not launches:
            raise NotProfiled(f"{report} holds no launch")
        return tuple(launches)


def _problem(code: int, text: str, report: Path) -> str | None:
    if "ERR_NVGPUCTRPERM" in text:
        return _NO_PERMISSION
    if "No kernels were profiled" in text:
        return "ncu saw no launch: the kernel did not run under it\n" + _end(text)
    if code != 0 or not report.is_file():
        return f"ncu failed with exit code {code}: {_end(text)}"
    return None


def _end(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-4:])
