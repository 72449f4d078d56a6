"""From a call to a loaded kernel: select, build what is missing, load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from sparsekit.aot.execute import execute
from sparsekit.aot.plan import Planner
from sparsekit.discover import Choice
from sparsekit.errors import MissingArtifactError, NoKernelError
from sparsekit.model.arch import Arch
from sparsekit.model.artifact import Artifact, CompileJob
from sparsekit.model.call import Call
from sparsekit.model.kernel import Kernel
from sparsekit.operators.first_use import FirstUse
from sparsekit.runtime.loader import Loaded, Loader
from sparsekit.runtime.select import Candidate, Decision, decide, turns
from sparsekit.store.local import Store


@dataclass(frozen=True)
class Prepared:
    """A chosen kernel, loaded: everything of a launch but the addresses."""

    candidate: Candidate
    artifact: Artifact
    entries: Mapping[str, Loaded]


class Acquirer:
    """Turns calls into loaded kernels. note(text): told of a fallback that costs something.

    first_use: what has kernels checked on a device where they never ran; None where all are run.
    batch_invariant: False lets the choice look at the batch.
    """

    def __init__(
        self, choices: Sequence[Choice], planner: Planner, store: Store, *, build: bool,
        note: Callable[[str], None], first_use: FirstUse | None = None,
        batch_invariant: bool = True,
    ) -> None:  # fmt: skip
        self.choices = tuple(choices)
        self._batch_invariant = batch_invariant
        self._planner, self._store = planner, store
        self._build, self._note, self._first_use = build, note, first_use
        self._artifacts: dict[str, Artifact] = {}
        self._jobs: dict[tuple[Path, str, str, Arch, bool], CompileJob] = {}

    def decisions(self, call: Call) -> Iterable[Decision]:
        """Every decision in order, up to the one that is taken."""
        for decision in decide(self._kernels, call, batch_invariant=self._batch_invariant):
            checked = self._with_first_use(self._with_compiler(decision), call)
            yield checked
            if checked.taken:
                return

    def prepare(self, call: Call, loader: Loader) -> Prepared:
        """The kernel for the call, loaded. Raises NoKernelError with all reasons when none fits."""
        decisions = list(self.decisions(call))
        last = decisions[-1] if decisions else None
        if last is None or not last.taken or last.candidate is None:
            return self._from_ptx(call, loader) or _nothing_fits(decisions)
        artifact = self._artifact(self._job(last.candidate))
        if self._is_unproven(last.candidate, call):
            assert self._first_use is not None
            assert call.device is not None
            if refusal := self._first_use.refusal(last.candidate, artifact, call.device):
                self._note(refusal)
                return self.prepare(call, loader)  # which turns that one down
        return _loaded(last.candidate, artifact, call, loader, ptx=False)

    @property
    def _kernels(self) -> list[tuple[Kernel, Sequence[str]]]:
        return [(choice.kernel, choice.variants) for choice in self.choices]

    def _with_compiler(self, decision: Decision) -> Decision:
        """The decision, turned down where the toolchain has no such target."""
        if not decision.taken or decision.candidate is None:
            return decision
        lacking = self._job(decision.candidate).toolchain.lacks(decision.candidate.arch)
        return replace(decision, taken=False, reason=lacking) if lacking else decision

    def _with_first_use(self, decision: Decision, call: Call) -> Decision:
        """The decision, turned down where the kernel has failed on the device before."""
        candidate, device = decision.candidate, call.device
        if not decision.taken or candidate is None or not self._is_unproven(candidate, call):
            return decision
        assert self._first_use is not None
        assert device is not None
        job = self._job(candidate)
        artifact = self._artifacts.get(job.key) or self._store.get(job.key)
        known = self._first_use.known(artifact, device) if artifact else None
        if known is None or known.passed:
            return decision
        return replace(decision, taken=False, reason=f"its first use here failed: {known.told}")

    def _is_unproven(self, candidate: Candidate, call: Call) -> bool:
        """Whether it never ran on such a device, and a later kernel could stand in for it."""
        if self._first_use is None or call.device is None:
            return False
        asked = turns(self._kernels, call, batch_invariant=self._batch_invariant)
        kernels = [turn.kernel for turn in asked]
        later = kernels[kernels.index(candidate.kernel) + 1 :]
        capability = call.device.compute_capability
        return not candidate.kernel.is_proven_on(capability) and any(
            kernel.targets_for(capability) for kernel in later
        )

    def _job(self, candidate: Candidate, *, ptx: bool = False) -> CompileJob:
        """The job that compiles the candidate; a key costs a look at every source, so once."""
        kernel, variant, instance = candidate.kernel, candidate.variant.name, candidate.instance
        known = (kernel.folder, variant, instance.name, candidate.arch, ptx)
        if known not in self._jobs:
            choice = next(c for c in self.choices if c.kernel is kernel)
            self._jobs[known] = self._planner.job(
                choice, variant, instance, candidate.arch, ptx=ptx
            )
        return self._jobs[known]

    def _artifact(self, job: CompileJob) -> Artifact:
        if job.key not in self._artifacts:
            self._artifacts[job.key] = self._stored(job) if not self._build else self._built(job)
        return self._artifacts[job.key]

    def _stored(self, job: CompileJob) -> Artifact:
        found = self._store.get(job.key)
        if found is None:
            raise MissingArtifactError(f"{job} is not built; {job.build_command}")
        return found

    def _built(self, job: CompileJob) -> Artifact:
        (outcome,) = execute([job], self._store, workers=1)
        if outcome.artifact is None:
            assert outcome.error is not None
            raise outcome.error
        return outcome.artifact

    def _from_ptx(self, call: Call, loader: Loader) -> Prepared | None:
        """The last resort: PTX that was built to be loadable, for a device without any cubin."""
        assert call.device is not None
        device = call.device.compute_capability
        for choice in self.choices:
            if choice.kernel.lang == "triton" or choice.kernel.targets_for(device):
                continue
            for candidate in _ptx_candidates(choice.kernel, choice.variants, call):
                found = self._store.get(self._job(candidate, ptx=True).key)
                if found is not None:
                    self._note(f"no cubin of {candidate} runs here; the driver compiles its PTX")
                    return _loaded(candidate, found, call, loader, ptx=True)
        return None


def _ptx_candidates(kernel: Kernel, variants: Sequence[str], call: Call) -> Iterable[Candidate]:
    """What would serve the call on each arch whose PTX the device takes, newest first."""
    assert call.device is not None
    for arch in sorted(kernel.archs, reverse=True):
        if arch.ptx_runs_on(call.device.compute_capability):
            stand_in = replace(call.device, compute_capability=arch.compute_capability)
            for decision in decide([(kernel, variants)], replace(call, device=stand_in)):
                if decision.taken and decision.candidate and decision.candidate.arch == arch:
                    yield decision.candidate


def _loaded(
    candidate: Candidate, artifact: Artifact, call: Call, loader: Loader, *, ptx: bool
) -> Prepared:
    assert call.device is not None
    names = dict.fromkeys(launch.entry for launch in candidate.launches)
    entries = {n: loader.entry(artifact, n, call.device.index, ptx=ptx) for n in names}
    return Prepared(candidate, artifact, entries)


def _nothing_fits(decisions: Sequence[Decision]) -> NoReturn:
    reasons = "\n".join(f"  {d.subject}: {d.reason}" for d in decisions)
    raise NoKernelError(f"no kernel takes this call\n{reasons}")
