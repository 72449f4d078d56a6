"""What a command that works on artifacts needs: settings, catalog, planner and store together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsekit.aot.execute import Outcome, execute
from sparsekit.aot.plan import Plan, Planner
from sparsekit.cli.options import say
from sparsekit.cli.progress import shown
from sparsekit.discover import Catalog
from sparsekit.errors import MissingArtifactError
from sparsekit.revisions import REVISIONS
from sparsekit.settings import Settings, load
from sparsekit.store.local import Store
from sparsekit.store.open import open_store
from sparsekit.toolchain.find import Toolchains


@dataclass(frozen=True)
class Session:
    settings: Settings
    catalog: Catalog
    planner: Planner
    store: Store

    def built(self, plan: Plan, *, build: bool, force: bool = False) -> list[Outcome]:
        """Every job's outcome in the plan's order, with progress on standard error.

        build=False compiles nothing: MissingArtifactError names the command that would.
        """
        if not build:
            for job in plan.jobs:
                if self.store.get(job.key) is None:
                    raise MissingArtifactError(f"{job} is not built; {job.build_command}")
        steps = execute(plan.jobs, self.store, workers=self.settings.jobs, force=force)
        place = {job.key: number for number, job in enumerate(plan.jobs)}
        outcomes = shown(steps, len(plan.jobs), "building")
        return sorted(outcomes, key=lambda outcome: place[outcome.job.key])


def open_session(
    cache_dir: Path | None, kernel_dirs: Sequence[Path] = (), jobs: int | None = None, *,
    lineinfo: bool = False,
) -> Session:  # fmt: skip
    settings = load(cache_dir=cache_dir, kernel_dirs=tuple(kernel_dirs), jobs=jobs)
    if settings.interpret:
        say("TRITON_INTERPRET is set; it is not passed on to the compiler")
    return Session(
        settings,
        Catalog(settings.kernel_dirs, settings.cache_dir / REVISIONS),
        Planner(Toolchains(settings), lineinfo=lineinfo),
        open_store(settings.cache_dir, say),
    )
