"""A kernel's first use on a compute capability where it has never run.

Its smoke cases run first, in a process of their own that may crash or hang, against float64 on the
very device. What came out is kept by device, driver and code, so that it is found out once. A GPU
that a kernel hangs on is taken from it by ending that process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparsekit.errors import EXIT_CHECK_FAILED
from sparsekit.files import parse_json
from sparsekit.model.artifact import Artifact
from sparsekit.model.call import Device
from sparsekit.operators.own_process import run_again
from sparsekit.runtime.select import Candidate
from sparsekit.store.notes import Notes, note_key

_LIMIT_S = 300.0
_KIND = "first use, 1"
_SHOWN_CHARS = 300


@dataclass(frozen=True)
class Outcome:
    """What came of a first use. told: how many cases passed, or what went wrong. lasting: that it
    is the kernel's doing, and not of this moment, as a GPU without memory is."""

    passed: bool
    told: str
    lasting: bool = True


class FirstUse:
    """Checks kernels on devices, once each. options: of the command line, for the store."""

    def __init__(
        self, notes: Notes, options: Sequence[str] = (), limit_s: float = _LIMIT_S
    ) -> None:
        self._notes, self._options, self._limit_s = notes, tuple(options), limit_s
        self._tried_now: dict[str, Outcome] = {}

    def known(self, artifact: Artifact, device: Device) -> Outcome | None:
        """What came of it before; None when it was never tried."""
        key = _key(artifact, device)
        note = self._notes.get(key)
        return self._tried_now.get(key) if note is None else Outcome(**note)

    def outcomes(self, device: Device) -> dict[str, Outcome]:
        """What came of every first use on the device and its driver, by `cu/kernel:variant`."""
        return {name: Outcome(**found) for name, found in self._index(device).items()}

    def refusal(self, candidate: Candidate, artifact: Artifact, device: Device) -> str | None:
        """Why the kernel must not be used there; None when it passed, now or before."""
        outcome = self.known(artifact, device)
        if outcome is None:
            outcome = self._tried(candidate, device)
            self._keep(candidate, artifact, device, outcome)
        if outcome.passed:
            return None
        return (
            f"{_name(candidate)} has never run on a "
            f"{device.name or 'GPU like this one'} before, and its first use failed: "
            f"{outcome.told}. Another kernel is used. To report it, send what this prints: "
            f"{' '.join(['sparsekit', *self._command(candidate, device)])}"
        )

    def _keep(
        self, candidate: Candidate, artifact: Artifact, device: Device, outcome: Outcome
    ) -> None:
        self._tried_now[_key(artifact, device)] = outcome
        if not outcome.lasting:
            return
        self._notes.put(_key(artifact, device), asdict(outcome))
        index = {**self._index(device), _name(candidate): asdict(outcome)}
        self._notes.put(_index_key(device), index)

    def _index(self, device: Device) -> dict[str, dict[str, Any]]:
        return self._notes.get(_index_key(device)) or {}

    def _command(self, candidate: Candidate, device: Device) -> list[str]:
        kernel = candidate.kernel
        dirs = [o for d in (kernel.address.kernel_dirs if kernel.address else ())
                for o in ("--kernels", str(d.absolute()))]  # fmt: skip
        name = kernel.address.name if kernel.address else kernel.qualified_name
        return [
            "verify", f"{name}:{candidate.variant.name}", "--tag", "smoke", "--device",
            f"cuda:{device.index}", *dirs, *self._options,
        ]  # fmt: skip

    def _tried(self, candidate: Candidate, device: Device) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="sparsekit-first-use-") as folder:
            file = Path(folder) / "verify.json"
            command = [*self._command(candidate, device), "--format", "json", "-o", str(file)]
            try:
                ended = run_again(command, self._limit_s)
            except OSError as error:
                return Outcome(False, f"it could not be checked: {error}", lasting=False)
            if ended.code is None:
                return Outcome(False, f"it did not end within {self._limit_s:.0f} s")
            return _judged(ended.code, file, ended.stderr)


def _judged(code: int, file: Path, stderr: str) -> Outcome:
    """Passed is only what ran, and was right in every case."""
    try:
        results = parse_json(file.read_text())["results"]
    except (OSError, ValueError, KeyError, TypeError):
        last = (stderr.strip().splitlines() or ["it said nothing"])[-1][:_SHOWN_CHARS]
        return Outcome(False, f"exit code {code}: {last}", lasting=code < 0)
    right = sum(bool(r["ok"]) and not r["skipped"] for r in results)
    wrong = [r for r in results if not r["ok"] and not r["skipped"]]
    if code == 0 and right and not wrong:
        return Outcome(True, f"{right} cases right")
    first = f", {wrong[0]['case']} first" if wrong else ""
    told = f"{len(wrong)} of {len(results)} cases wrong{first}"
    return Outcome(False, told, lasting=code == EXIT_CHECK_FAILED)


def _name(candidate: Candidate) -> str:
    return f"{candidate.kernel.qualified_name}:{candidate.variant.name}"


def _index_key(device: Device) -> str:
    return note_key(_KIND, "all", device.uuid, device.driver)


def _key(artifact: Artifact, device: Device) -> str:
    code = [entry.cubin_sha256 for entry in artifact.manifest.entries]
    return note_key(_KIND, device.uuid, device.driver, *code)
