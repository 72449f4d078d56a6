"""From references to ledgers: what `inspect-sass` and `lock` look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparsekit.aot.execute import Outcome
from sparsekit.aot.plan import Plan
from sparsekit.cli.native import requested_archs
from sparsekit.cli.options import say
from sparsekit.cli.progress import shown
from sparsekit.cli.session import Session
from sparsekit.codegen.foreign import is_foreign
from sparsekit.codegen.foreign_ledgers import ForeignReader
from sparsekit.codegen.inspect import Inspector, Reading
from sparsekit.codegen.ledger import Ledger, Name
from sparsekit.errors import EXIT_OK, CompileError, ToolchainError, UsageError
from sparsekit.kernel_folders import Broken
from sparsekit.model.arch import ArchRequest
from sparsekit.model.artifact import Artifact, CompileJob
from sparsekit.store.notes import Notes
from sparsekit.toolchain.find import Toolchains
from sparsekit.toolchain.tools import find_nvdisasm


@dataclass
class Inspected:
    """Ledgers of what was asked for. built: the artifacts that they are of, and the jobs that made
    them; images: the cubins of foreign code; failed: jobs that could not be built; refused: whether
    a target that was named, or a part of foreign code, could not be had; unread: whether a path
    has nothing that could be; broken: kernel folders that stand aside."""

    ledgers: list[Ledger] = field(default_factory=list)
    built: list[tuple[Artifact, CompileJob]] = field(default_factory=list)
    images: dict[Name, bytes] = field(default_factory=dict)
    failed: list[Outcome] = field(default_factory=list)
    refused: bool = False
    unread: bool = False
    broken: tuple[Broken, ...] = ()

    def exit_code(self) -> int:
        """What the looking itself came to; a check's result comes after it."""
        if self.failed:
            return CompileError.exit_code
        if self.unread:
            return UsageError.exit_code
        if self.refused or any(e.problem for e in self.ledgers):
            return ToolchainError.exit_code
        if self.broken:
            return max(b.exit_code for b in self.broken)
        return EXIT_OK if self.ledgers else UsageError.exit_code


def _reading(steps: Iterator[Reading], total: int) -> Iterator[Reading]:
    return shown(steps, total, "reading code", lines=False)


class Looker:
    """Builds what is missing and reads its code."""

    def __init__(self, session: Session, *, build: bool) -> None:
        nvdisasm: Path | None = None
        try:
            nvdisasm = find_nvdisasm(session.settings)
        except ToolchainError as error:
            say(str(error))
        notes = Notes(session.store.root)
        self.session, self._build = session, build
        self.inspector = Inspector(notes, nvdisasm, session.settings.jobs, _reading)

    def look(
        self, references: Sequence[str], toolchains: Sequence[str], arch: str | None
    ) -> Inspected:
        """The ledgers of the references' default instances, and of the code in paths. Without
        `arch`: of this machine's GPU or all for what is built, whatever there is in a path."""
        paths = [text for text in references if is_foreign(text)]
        ours = [text for text in references if text not in paths]
        if paths and not ours:
            found = Inspected()
        else:
            plan, broken = self.session.planned(ours, requested_archs(arch), toolchains)
            found = self.look_at(plan)
            found.broken = broken
        unread: list[UsageError] = []
        for text in paths:
            wanted = requested_archs(arch) if arch else ()
            try:
                self._look_into(Path(text).expanduser(), wanted, found)
            except UsageError as error:  # of this path: the others are looked at all the same
                unread.append(error)
        for problem in unread if found.ledgers else unread[:-1]:
            say(str(problem))
        if unread and not found.ledgers:
            raise unread[-1]
        found.unread = bool(unread)
        return found

    def _look_into(self, path: Path, archs: Sequence[ArchRequest], found: Inspected) -> None:
        assembler = Toolchains(self.session.settings).newest("triton")
        seen = ForeignReader(self.inspector, assembler).look(path, archs)
        for problem in seen.problems:
            say(problem)
        found.ledgers += seen.ledgers
        found.images |= seen.images
        found.refused = found.refused or bool(seen.problems)

    def look_at(self, plan: Plan) -> Inspected:
        found = Inspected(refused=any(r.named for r in plan.refused))
        for reason in dict.fromkeys(r.reason for r in plan.refused):
            say(reason)
        outcomes = self.session.built(plan, build=self._build)
        found.failed = [o for o in outcomes if o.error is not None]
        found.built = [(o.artifact, o.job) for o in outcomes if o.artifact is not None]
        sources = [(a, str(job.kernel.folder / job.kernel.source)) for a, job in found.built]
        found.ledgers = list(self.inspector.ledgers(sources))
        return found
