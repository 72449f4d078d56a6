"""What the driver shows, asked in a child process, so that a driver that hangs is a finding.

`python -m sparsekit.runtime.probe` prints one JSON document.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from sparsekit.model.call import Device

_LIMIT_S = 30.0
_SHOWN_CHARS = 200


@dataclass(frozen=True)
class Probe:
    """The devices that the driver shows this process. driver: the CUDA version it supports, as
    `13.0`; None, and a problem, when there is no usable driver."""

    devices: tuple[Device, ...]
    driver: str | None = None
    problem: str | None = None


def probe_devices(limit_s: float = _LIMIT_S) -> Probe:
    """Ask the driver in a child process. Never raises: what is wrong stands in `problem`."""
    command = [sys.executable, "-m", "sparsekit.runtime.probe"]
    root = str(Path(__file__).resolve().parents[2])
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, errors="replace", timeout=limit_s,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Probe((), problem=f"the driver did not answer within {limit_s:.0f} s")
    except OSError as error:
        return Probe((), problem=f"asking the driver failed: {error}")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Probe((), problem=f"asking the driver failed: {last}")
    try:
        told = json.loads(done.stdout.splitlines()[-1])  # a driver may print before it
        devices = tuple(
            Device(**{**d, "compute_capability": tuple(d["compute_capability"])})
            for d in told["devices"]
        )
        return Probe(devices, told["driver"], told["problem"])
    except (IndexError, KeyError, TypeError, ValueError):
        told_text = done.stdout.strip()[-_SHOWN_CHARS:]
        return Probe((), problem=f"asking the driver gave no answer that reads: {told_text!r}")


def main() -> None:
    from sparsekit.errors import GpuError
    from sparsekit.runtime.driver import Driver

    try:
        driver = Driver()
        probe = Probe(tuple(driver.devices()), driver.version)
    except GpuError as error:
        probe = Probe((), problem=str(error))
    json.dump(asdict(probe), sys.stdout)


if __name__ == "__main__":
    main()
