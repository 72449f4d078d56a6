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
from sparsekit.kernel_folders import Broken
from sparsekit.model.arch import ArchRequest
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

    def planned(
        self, references: Sequence[str], archs: Sequence[ArchRequest],
        toolchains: Sequence[str] = (), *, every_instance: bool = False,
    ) -> tuple[Plan, tuple[Broken, ...]]:  # fmt: skip
        """The jobs, and the kernel folders that stand aside with their reasons, which are said.

        Raises the reason when nothing is left.
        """
        choices = self.catalog.resolve(references, toolchains)
        broken = self.broken_beside(references)
        plan = self.planner.plan(choices, archs, every_instance=every_instance)
        if plan.unplanned and not plan.jobs and not plan.refused and not broken:
            for other in plan.unplanned[1:]:
                say(str(other.error))
            raise plan.unplanned[0].error
        unplanned = [
            Broken(u.kernel.folder, str(u.error), u.error.exit_code) for u in plan.unplanned
        ]
        for folder in unplanned:
            say(folder.reason)
        return plan, (*broken, *unplanned)

    def broken_beside(self, references: Sequence[str]) -> tuple[Broken, ...]:
        """The folders that cannot be used, which are said; none where kernels are named."""
        broken = () if references else self.catalog.broken
        for folder in broken:
            say(folder.reason)
        return broken

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
        outcomes = shown(steps, len(plan.jobs), "building") if build else steps
        return sorted(outcomes, key=lambda outcome: place[outcome.job.key])


def open_session(
    cache_dir: Path | None, kernel_dirs: Sequence[Path] = (), jobs: int | None = None, *,
    lineinfo: bool = False,
) -> Session:  # fmt: skip
    settings = load(cache_dir=cache_dir, kernel_dirs=tuple(kernel_dirs), jobs=jobs)
    store_options = ("--cache-dir", str(settings.cache_dir)) if cache_dir is not None else ()
    if settings.interpret:
        say("TRITON_INTERPRET is set; it is not passed on to the compiler")
    return Session(
        settings,
        Catalog(settings.kernel_dirs, settings.kernels_origin, settings.cache_dir / REVISIONS),
        Planner(Toolchains(settings), lineinfo=lineinfo, store_options=store_options),
        open_store(settings.cache_dir, say),
    )
