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
            command, cwd=root, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Probe((), problem=f"the driver did not answer within {limit_s:.0f} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Probe((), problem=f"asking the driver failed: {last}")
    told = json.loads(done.stdout)
    devices = tuple(
        Device(**{**d, "compute_capability": tuple(d["compute_capability"])})
        for d in told["devices"]
    )
    return Probe(devices, told["driver"], told["problem"])


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
