"""One variant of one of our kernels in the emulator, on cases that a test makes up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch

from sparsekit import settings as settings_module
from sparsekit.aot.plan import Planner
from sparsekit.check.compare import compare_to_reference
from sparsekit.check.placement import place_inputs
from sparsekit.check.subject import arguments_of
from sparsekit.discover import Catalog
from sparsekit.emulator import FaultError, Report, Schedule
from sparsekit.model import Case, Op
from sparsekit.model.arch import parse_arch
from sparsekit.operators.emulated_driver import EmulatedDriver
from sparsekit.operators.operator import Operator
from sparsekit.store.open import open_store
from sparsekit.toolchain.find import Toolchains


class EditingDriver(EmulatedDriver):
    """Changes PTX before it loads it."""

    edit: Callable[[str], str] = str

    def load(self, image: bytes, entry: str, what: str) -> Any:
        return super().load(self.edit(image.decode()).encode(), entry, what)


@dataclass(frozen=True)
class Run:
    """What a run gave. wrong: by output, how it differs from float64 beyond the tolerance."""

    reports: tuple[Report, ...]
    outputs: dict[str, torch.Tensor]
    wrong: dict[str, str]
    stopped: bool

    @property
    def faults(self) -> list[str]:
        return [f"{f.kind}: {f.message}" for r in self.reports for f in r.faults]


class OwnKernel:
    """A variant for one arch, compiled into a store of the test's; launch: other than it has."""

    def __init__(
        self, reference: str, arch: str, store: Any, launch: Mapping[str, int] | None = None
    ) -> None:
        (choice,) = Catalog().resolve([reference])
        variants = tuple(
            replace(v, launch={**v.launch, **(launch or {})}) for v in choice.kernel.variants
        )
        self._choice = replace(choice, kernel=replace(choice.kernel, variants=variants))
        self._arch = parse_arch(arch)
        planner = Planner(Toolchains(settings_module.load(cache_dir=store)))
        self._operator_of = lambda driver: Operator(
            self._choice.op, [self._choice], planner, open_store(store, print), driver=driver
        )

    @property
    def op(self) -> Op:
        return self._choice.op

    def case(self, base: str, dims: dict[str, int], **options: object) -> Case:
        """A case of the op with other sizes and options."""
        case = next(c for c in self._choice.op.cases if c.name == base)
        return replace(
            case, dims={**case.dims, **dims}, options={**case.options, **options}, emulated={}
        )

    def texts(self, case: Case) -> list[str]:
        """The PTX that the variant is for the case's instance; with Triton one for each entry."""
        texts: list[str] = []
        self.run(case, edit=lambda text: texts.append(text) or text)
        return list(dict.fromkeys(texts))

    def run(
        self, case: Case, schedule: Schedule | None = None, checks: Iterable[str] | None = None,
        edit: Callable[[str], str] = str,
    ) -> Run:  # fmt: skip
        op = self._choice.op
        driver = EditingDriver(self._arch.compute_capability, self._arch, checks=checks)
        driver.edit, driver.schedule = edit, schedule or Schedule()
        module = import_module(f"sparsekit.ops.{op.name}.reference")
        inputs = place_inputs(module.make_inputs(case, "random"), case, torch.device("cpu"))
        asked = (o for o in op.outputs if not o.optional or case.options.get(f"return_{o.name}"))
        arguments = replace(arguments_of(op, inputs, {}), outputs=tuple(o.name for o in asked))
        outputs: dict[str, torch.Tensor] = {}
        stopped = True
        with contextlib.suppress(FaultError):
            outputs = self._operator_of(driver).run(arguments)
            stopped = False
        expected = module.reference(inputs)
        bounds = module.tolerance(inputs, expected)
        checked = {
            name: compare_to_reference(found, expected[name], bounds[name])
            for name, found in outputs.items()
        }
        wrong = {name: str(check.problem) for name, check in checked.items() if not check.ok}
        return Run(tuple(done.report for done in driver.launched), outputs, wrong, stopped)
