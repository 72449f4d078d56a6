"""`sparsekit.load`: from a reference to a callable."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from sparsekit import settings as settings_module
from sparsekit.aot.plan import Planner
from sparsekit.discover import Catalog
from sparsekit.errors import UsageError
from sparsekit.operators.operator import Operator
from sparsekit.revisions import REVISIONS
from sparsekit.store.open import open_store
from sparsekit.toolchain.find import Toolchains


def load(
    reference: str, *, build: bool = True, cache_dir: Path | None = None,
    kernels: Sequence[Path] = (), note: Callable[[str], None] = warnings.warn,
) -> Operator:  # fmt: skip
    """The operator that the reference means, as a callable with the op's own signature.

    reference: `NAME[:VARIANT][@TOOLCHAIN][@git:REV]`. An op leaves the choice of kernel and variant
    open; a kernel or a variant is what runs, or the call is refused. build: compile what is
    missing, else MissingArtifactError names the command. kernels: folders beside the shipped ones.
    note(text): told of what the user should know (a damaged store, a fallback).
    """
    settings = settings_module.load(cache_dir=cache_dir, kernel_dirs=tuple(map(Path, kernels)))
    choices = Catalog(settings.kernel_dirs, settings.cache_dir / REVISIONS).resolve([reference])
    ops = {choice.op.name: choice.op for choice in choices}
    if len(ops) != 1:
        raise UsageError(f"{reference!r} means several ops, {', '.join(ops)}; name one")
    (op,) = ops.values()
    store = open_store(settings.cache_dir, note)
    return Operator(op, choices, Planner(Toolchains(settings)), store, build=build, note=note)
