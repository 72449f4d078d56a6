"""An operator bound to the kernels that may compute it: what `sparsekit.load` returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sparsekit.aot.plan import Planner
from sparsekit.discover import Choice
from sparsekit.errors import ArgumentError, GpuError
from sparsekit.model.call import Device
from sparsekit.model.op import Op
from sparsekit.operators.acquire import Acquirer, Prepared
from sparsekit.operators.arguments import Arguments, bind
from sparsekit.operators.first_use import FirstUse
from sparsekit.operators.plan import CallPlan, LaunchPlan, plan_call, plan_launch
from sparsekit.operators.signature import doc_of, signature_of
from sparsekit.runtime import tensors as torch_tensors
from sparsekit.runtime.device_driver import DeviceDriver
from sparsekit.runtime.driver import Driver
from sparsekit.runtime.loader import Loader
from sparsekit.runtime.select import Decision
from sparsekit.store.local import Store

_KEPT_CALLS = 4096  # plans by the facts of their call; the oldest goes first
Plan = TypeVar("Plan", CallPlan, LaunchPlan)


class Operator:
    """One operator as a callable with the op's own signature.

    Calling it checks the arguments, chooses a kernel, and launches on the tensors' device and
    current stream. Outputs are returned as one tensor, or a tuple of them. Raises TypeError for an
    element type, ValueError for shapes, strides, devices and values, GpuError for the driver.
    """

    def __init__(
        self, op: Op, choices: Sequence[Choice], planner: Planner, store: Store, *,
        build: bool = True, note: Callable[[str], None] = warnings.warn,
        driver: DeviceDriver | None = None, first_use: FirstUse | None = None,
        batch_invariant: bool = True,
    ) -> None:  # fmt: skip
        """driver: of the device that launches are made on; None for the GPU's, on first use.
        first_use: what has kernels checked where they never ran; None to run all as they are.
        batch_invariant: False lets the choice of a kernel look at the batch."""
        self.op = op
        self._driver = driver
        self._acquirer = Acquirer(
            choices, planner, store, build=build, note=note, first_use=first_use,
            batch_invariant=batch_invariant,
        )  # fmt: skip
        self._loader: Loader | None = None
        self._devices: dict[int, Device] = {}
        self._call_plans: dict[tuple[Any, ...], CallPlan] = {}
        self._launch_plans: dict[tuple[Any, ...], LaunchPlan] = {}
        self.__name__, self.__doc__, self.__signature__ = op.name, doc_of(op), signature_of(op)

    def __repr__(self) -> str:
        return f"<operator {self.op.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self.bind(*args, **kwargs)
        outputs = self.run(arguments)
        results = tuple(outputs[name] for name in arguments.outputs)
        return results[0] if len(results) == 1 else results

    def bind(self, *args: Any, **kwargs: Any) -> Arguments:
        """The arguments by name, for `run`, `decisions` and `prepared`."""
        return bind(self.op, args, kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Choose, build and load what such a call needs, without launching: for graph capture."""
        self.prepared(self.bind(*args, **kwargs))

    def prepared(self, arguments: Arguments) -> Prepared | None:
        """What the call would run, loaded; None when it has nothing to compute."""
        key, plan = self._call_plan(arguments, self._torch_device(arguments))
        return None if plan.empty else self._launch_plan(key, plan).prepared

    def decisions(self, arguments: Arguments) -> list[Decision]:
        """Every selection decision for the call, up to the one that is taken."""
        _, plan = self._call_plan(arguments, self._torch_device(arguments))
        return list(self._acquirer.decisions(plan.call))

    def run(self, arguments: Arguments) -> dict[str, Any]:
        """Launch; returns the outputs by name, those that the caller gave among them."""
        device = self._torch_device(arguments)
        key, plan = self._call_plan(arguments, device)
        outputs = dict(arguments.given)
        with torch_tensors.current(device):
            for buffer in plan.outputs:
                outputs[buffer.name] = torch_tensors.empty(buffer.shape, buffer.dtype, device)
            if not plan.empty:
                launches = self._launch_plan(key, plan)
                launches.run(arguments.inputs, outputs, device)
        return outputs

    def _call_plan(self, arguments: Arguments, device: Any) -> tuple[tuple[Any, ...], CallPlan]:
        key = self._key(arguments, device)
        plan = self._call_plans.get(key)
        if plan is None:
            plan = plan_call(self.op, arguments, self._device(device))
            _keep(self._call_plans, key, plan)
        return key, plan

    def _launch_plan(self, key: tuple[Any, ...], plan: CallPlan) -> LaunchPlan:
        found = self._launch_plans.get(key)
        if found is None:
            if torch_tensors.capturing():
                raise GpuError(
                    f"{self.op.name} is being captured into a CUDA graph and was not loaded for "
                    "such a call before; call prepare() with the same arguments first"
                )
            found = plan_launch(self.op, plan.call, self._acquirer, self.loader)
            _keep(self._launch_plans, key, found)
        return found

    def _key(self, arguments: Arguments, device: Any) -> tuple[Any, ...]:
        """All of a call that checks and choices may look at, as a dictionary key."""
        tensors = (*arguments.inputs.values(), *arguments.given.values())
        return (
            device.index, arguments.outputs, tuple(arguments.given),
            tuple(arguments.scalars.values()),
            *(torch_tensors.signature(t) for t in tensors),
        )  # fmt: skip

    def _device(self, device: Any) -> Device:
        index = device.index or 0
        if index not in self._devices:
            if device.type == "cuda":
                torch_tensors.initialise(index)
            self._devices[index] = self.loader.driver.device(index)
        return self._devices[index]

    def _torch_device(self, arguments: Arguments) -> Any:
        kind = self._driver.torch_type if self._driver else "cuda"
        return _device(self.op, arguments, kind)

    @property
    def loader(self) -> Loader:
        if self._loader is None:
            self._loader = Loader(self._driver or Driver())
        return self._loader


def _keep(plans: dict[tuple[Any, ...], Plan], key: tuple[Any, ...], plan: Plan) -> None:
    if len(plans) >= _KEPT_CALLS:
        plans.pop(next(iter(plans)), None)
    plans[key] = plan


def _device(op: Op, arguments: Arguments, kind: str) -> Any:
    """The one device of all tensors. Raises ArgumentError before anything else looks at them."""
    found: dict[Any, str] = {}
    for name, tensor in (*arguments.inputs.items(), *arguments.given.items()):
        if tensor is not None:
            found.setdefault(tensor.device, name)
    if len(found) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in found.items())
        raise ArgumentError(f"{op.name}: all tensors must be on one device, found {places}")
    (device,) = found
    if device.type != kind:
        (name,) = found.values()
        wanted = "a CUDA device" if kind == "cuda" else "the CPU"
        hint = "" if kind == "cpu" else '; sparsekit.load(..., device="cpu") runs there'
        raise ArgumentError(
            f"{op.name}: tensors must be on {wanted}, found {name} on {device}{hint}"
        )
    return device
