"""An operator bound to the kernels that may compute it: what `sparsekit.load` returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsekit.aot.execute import execute
from sparsekit.aot.plan import Planner
from sparsekit.discover import Choice
from sparsekit.errors import ArgumentError, GpuError, MissingArtifactError
from sparsekit.model.artifact import Artifact, CompileJob
from sparsekit.model.call import Call, Device
from sparsekit.model.kernel import Launch, passed_args
from sparsekit.model.op import Op
from sparsekit.operators.arguments import Arguments, bind, checked_call, output_dtype, shape_of
from sparsekit.runtime import tensors as torch_tensors
from sparsekit.runtime.driver import Driver
from sparsekit.runtime.launcher import launch
from sparsekit.runtime.loader import Loaded, Loader
from sparsekit.runtime.select import Candidate, Decision, argument_number, decide
from sparsekit.store.local import Store


@dataclass(frozen=True)
class Prepared:
    """A chosen kernel, loaded: everything of a launch but the addresses."""

    candidate: Candidate
    artifact: Artifact
    entries: Mapping[str, Loaded]
    from_ptx: bool


class Operator:
    """One operator as a callable with the op's own signature.

    Calling it checks the arguments, chooses a kernel, and launches on the tensors' device and
    current stream. Outputs are returned as one tensor, or a tuple of them.
    """

    def __init__(
        self, op: Op, choices: Sequence[Choice], planner: Planner, store: Store, *,
        build: bool = True, note: Callable[[str], None] = warnings.warn,
    ) -> None:  # fmt: skip
        self.op, self.choices = op, tuple(choices)
        self._planner, self._store = planner, store
        self._build, self._note = build, note
        self._loader: Loader | None = None
        self._devices: dict[int, Device] = {}
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        self.__name__ = op.name
        self.__doc__ = op.summary

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = bind(self.op, args, kwargs)
        outputs = self.run(arguments)
        results = tuple(outputs[name] for name in arguments.outputs)
        return results[0] if len(results) == 1 else results

    def prepare(self, *args: Any, **kwargs: Any) -> Prepared | None:
        """Choose, build and load what the call needs, without launching: for graph capture."""
        arguments = bind(self.op, args, kwargs)
        call, _ = self._checked(arguments)
        return None if self._is_empty(call, arguments) else self._prepare(call)

    def decisions(self, arguments: Arguments) -> list[Decision]:
        """Every selection decision for the call, up to the one that is taken."""
        call, _ = self._checked(arguments)
        return list(self._decided(call))

    def run(self, arguments: Arguments) -> dict[str, Any]:
        """Launch; returns the outputs by name, those that the caller gave among them."""
        call, outputs = self._checked(arguments)
        if self._is_empty(call, arguments):
            return outputs
        device = _device(self.op, arguments)
        with torch_tensors.current(device):
            if torch_tensors.capturing() and _key(call) not in self._prepared:
                raise GpuError(
                    f"{self.op.name} is being captured into a CUDA graph and was not loaded for "
                    "such a call before; call prepare() with the same arguments first"
                )
            self._launch(self._prepare(call), call, {**arguments.inputs, **outputs}, device)
        return outputs

    def _checked(self, arguments: Arguments) -> tuple[Call, dict[str, Any]]:
        """The call's facts, and its outputs allocated where the caller gave none."""
        device = _device(self.op, arguments)
        call = checked_call(self.op, arguments, self._device(device.index))
        outputs = {
            t.name: arguments.given[t.name]
            if t.name in arguments.given
            else torch_tensors.empty(
                shape_of(t, call.dims), output_dtype(t, arguments.scalars), device
            )
            for t in self.op.outputs
            if t.name in arguments.outputs
        }
        known = torch_tensors.facts(outputs)
        return replace(call, **{k: {**getattr(call, k), **v} for k, v in known.items()}), outputs

    def _device(self, index: int) -> Device:
        if index not in self._devices:
            torch_tensors.initialise(index)
            self._devices[index] = self.loader.driver.device(index)
        return self._devices[index]

    @property
    def loader(self) -> Loader:
        if self._loader is None:
            self._loader = Loader(Driver())
        return self._loader

    def _is_empty(self, call: Call, arguments: Arguments) -> bool:
        first = next(t for t in self.op.outputs if t.name in arguments.outputs)
        return 0 in shape_of(first, call.dims)

    def _decided(self, call: Call) -> Iterable[Decision]:
        for decision in decide([(c.kernel, c.variants) for c in self.choices], call):
            yield decision
            if decision.taken:
                return

    def _prepare(self, call: Call) -> Prepared:
        key = _key(call)
        if key not in self._prepared:
            self._prepared[key] = self._load(call)
        return self._prepared[key]

    def _load(self, call: Call) -> Prepared:
        passed: list[Decision] = []
        for decision in decide([(c.kernel, c.variants) for c in self.choices], call):
            if not decision.taken or decision.candidate is None:
                passed.append(decision)
                continue
            candidate = decision.candidate
            job = self._job(candidate)
            if lacking := job.toolchain.lacks(candidate.arch):
                passed.append(replace(decision, taken=False, reason=lacking))
                continue
            return self._loaded(candidate, self._artifact(job), call, from_ptx=False)
        return self._from_ptx(call, passed)

    def _from_ptx(self, call: Call, passed: Sequence[Decision]) -> Prepared:
        """The last resort: PTX that was built to be loadable, for a device without any cubin."""
        assert call.device is not None
        device = call.device.compute_capability
        for choice in self.choices:
            if choice.kernel.lang == "triton" or choice.kernel.targets_for(device):
                continue
            for arch in sorted(choice.kernel.archs, reverse=True):
                if not arch.ptx_runs_on(device):
                    continue
                stand_in = replace(call.device, compute_capability=arch.compute_capability)
                as_if = replace(call, device=stand_in)
                for decision in decide([(choice.kernel, choice.variants)], as_if):
                    candidate = decision.candidate
                    if not decision.taken or candidate is None or candidate.arch != arch:
                        continue
                    found = self._store.get(self._job(candidate, ptx=True).key)
                    if found is not None:
                        self._note(f"no cubin of {candidate} runs here; the driver compiles its PTX")
                        return self._loaded(candidate, found, call, from_ptx=True)
        raise _nothing_fits(self.op, passed)

    def _job(self, candidate: Candidate, *, ptx: bool = False) -> CompileJob:
        choice = next(c for c in self.choices if c.kernel is candidate.kernel)
        return self._planner.job(
            choice, candidate.variant.name, candidate.instance, candidate.arch, ptx=ptx
        )

    def _artifact(self, job: CompileJob) -> Artifact:
        if not self._build:
            found = self._store.get(job.key)
            if found is None:
                lang = "cu" if job.kernel.lang == "cuda" else "triton"
                raise MissingArtifactError(
                    f"{job} is not built; sparsekit build {lang}/{job.kernel.name}:"
                    f"{job.variant.name} --arch {job.arch}"
                    + ("" if job.instance.default else " --instances all")
                )
            return found
        (outcome,) = execute([job], self._store, workers=1)
        if outcome.artifact is None:
            assert outcome.error is not None
            raise outcome.error
        return outcome.artifact

    def _loaded(
        self, candidate: Candidate, artifact: Artifact, call: Call, *, from_ptx: bool
    ) -> Prepared:
        assert call.device is not None
        names = dict.fromkeys(launch.entry for launch in candidate.launches)
        entries = {
            name: self.loader.entry(artifact, name, call.device.index, ptx=from_ptx)
            for name in names
        }
        return Prepared(candidate, artifact, entries, from_ptx)

    def _launch(
        self, prepared: Prepared, call: Call, tensors: Mapping[str, Any], device: Any
    ) -> None:
        candidate = prepared.candidate
        buffers = {
            s.name: torch_tensors.empty(s.shape, s.dtype, device)
            for step in candidate.launches
            for s in step.scratch
        }
        stream = torch_tensors.stream_of(device)
        for step in candidate.launches:
            loaded = prepared.entries[step.entry]
            values = _values(candidate, step, call, {**tensors, **buffers})
            scratch_bytes = loaded.record.global_scratch_bytes * _blocks(step)
            values |= {"global_scratch": 0, "profile_scratch": 0}
            if scratch_bytes:
                buffers["global_scratch"] = torch_tensors.empty((scratch_bytes,), "u8", device)
                values["global_scratch"] = torch_tensors.address(buffers["global_scratch"])
            launch(self.loader.driver, loaded, step.grid, values, stream)


def _values(
    candidate: Candidate, step: Launch, call: Call, tensors: Mapping[str, Any]
) -> dict[str, int | float]:
    """Every argument of the launch by name, addresses for pointers (0 for what was not given)."""
    values: dict[str, int | float] = {}
    for arg in passed_args(candidate.kernel.entry(step.entry), candidate.instance):
        if arg.is_pointer:
            tensor = tensors.get(arg.bound_to)
            values[arg.name] = 0 if tensor is None else torch_tensors.address(tensor)
        else:
            values[arg.name] = argument_number(arg, step, call)
    return values


def _blocks(step: Launch) -> int:
    x, y, z = step.grid
    return x * y * z


def _device(op: Op, arguments: Arguments) -> Any:
    """The one device of all tensors. Raises ArgumentError before anything else looks at them."""
    found: dict[Any, str] = {}
    for name, tensor in {**arguments.inputs, **arguments.given}.items():
        if tensor is not None:
            found.setdefault(tensor.device, name)
    if len(found) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in found.items())
        raise ArgumentError(f"{op.name}: all tensors must be on one device, found {places}")
    (device,) = found
    if device.type != "cuda":
        (name,) = found.values()
        raise ArgumentError(f"{op.name}: tensors must be on a CUDA device, found {name} on {device}")
    return device


def _key(call: Call) -> tuple[Any, ...]:
    """All of a call that a choice may look at, as a dictionary key."""
    assert call.device is not None
    return (
        tuple(call.dims.items()), tuple(call.dtypes.items()), tuple(call.strides.items()),
        tuple(call.alignments.items()), tuple(call.scalars.items()), call.device.index,
    )  # fmt: skip


def _nothing_fits(op: Op, passed: Sequence[Decision]) -> ArgumentError:
    reasons = "\n".join(f"  {d.subject}: {d.reason}" for d in passed)
    return ArgumentError(f"{op.name}: no kernel takes this call\n{reasons}")
