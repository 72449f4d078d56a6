"""`sparsekit.load`: from a reference to a callable."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparsekit import settings as settings_module
from sparsekit.aot.plan import Planner
from sparsekit.discover import Catalog, Choice, only_op
from sparsekit.errors import UsageError
from sparsekit.model.arch import ALL_CAPABILITIES, ArchRequest, parse_archs
from sparsekit.operators.first_use import FirstUse
from sparsekit.operators.operator import Operator
from sparsekit.revisions import REVISIONS
from sparsekit.store.notes import Notes
from sparsekit.store.open import open_store
from sparsekit.toolchain.find import Toolchains

if TYPE_CHECKING:
    from sparsekit.operators.emulated_driver import EmulatedDriver

DEVICES = ("cuda", "cpu")


def load(
    reference: str, *, build: bool = True, cache_dir: Path | None = None,
    kernels: Sequence[Path] = (), note: Callable[[str], None] = warnings.warn,
    device: str = "cuda", arch: str | None = None, strict: bool = False,
    without: Iterable[str] = (), lineinfo: bool = False, batch_invariant: bool = True,
) -> Operator:  # fmt: skip
    """`sparsekit.load`, which says what it does."""
    if device not in DEVICES:
        raise UsageError(f"device must be cuda or cpu, found {device!r}")
    settings = settings_module.load(cache_dir=cache_dir, kernel_dirs=tuple(map(Path, kernels)))
    catalog = Catalog(settings.kernel_dirs, settings.kernels_origin, settings.cache_dir / REVISIONS)
    choices = catalog.resolve([reference])
    op = only_op(choices, reference)
    store = open_store(settings.cache_dir, note)
    store_options = ("--cache-dir", str(settings.cache_dir)) if cache_dir is not None else ()
    planner = Planner(Toolchains(settings), lineinfo=lineinfo, store_options=store_options)
    driver = first_use = None
    if device == "cpu":
        driver = emulated_driver(choices, arch, strict, without)
    elif arch is not None:
        raise UsageError("arch goes with device='cpu'; a GPU has its own")
    else:
        first_use = FirstUse(Notes(store.root), ("--cache-dir", str(store.root.absolute())))
    return Operator(
        op, choices, planner, store, build=build, note=note, driver=driver, first_use=first_use,
        batch_invariant=batch_invariant,
    )  # fmt: skip


def emulated_driver(
    choices: Sequence[Choice], arch: str | None, strict: bool, without: Iterable[str]
) -> EmulatedDriver:
    """The CPU as a device of that one arch; without it, of the first that a kernel has."""
    from sparsekit.emulator import chosen_checks  # numpy is not for those who only have a GPU
    from sparsekit.operators.emulated_driver import EmulatedDriver

    requests = parse_archs(arch) if arch is not None else (_first_arch(choices),)
    if len(requests) != 1:
        raise UsageError(f"arch must name one arch, found {arch!r}")
    (request,) = requests
    checks = chosen_checks(strict=strict, without=without)
    return EmulatedDriver(request.capability, request.exact, checks=checks)


def _first_arch(choices: Sequence[Choice]) -> ArchRequest:
    """The first compute capability that some kernel has a target for."""
    known = {a.compute_capability for choice in choices for a in choice.kernel.archs}
    return ArchRequest(next((c for c in ALL_CAPABILITIES if c in known), ALL_CAPABILITIES[0]))
