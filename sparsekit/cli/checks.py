"""What `inspect-sass` checks the code against: bases, requirements, the lock, other toolchains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import click

from sparsekit.cli.options import say
from sparsekit.codegen import lock as locks
from sparsekit.codegen.finding import Finding
from sparsekit.codegen.ledger import Ledger
from sparsekit.codegen.numerics import numerics, numerics_findings
from sparsekit.codegen.regression import regression_findings, rows
from sparsekit.codegen.requirements import Requirement, check
from sparsekit.codegen.verdict import Comparison, worse_findings
from sparsekit.errors import UsageError
from sparsekit.model.arch import ArchRequest
from sparsekit.report.causes import numerics_document
from sparsekit.report.compare import comparison_document, matrix_document
from sparsekit.report.document import Document, Lines
from sparsekit.report.findings import findings_document, github_annotations

_SHOWN_NAMES = 5


@dataclass
class Results:
    """What the checks came to, in the order in which they are shown."""

    documents: list[Document] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(finding.level == "error" for finding in self.findings)

    def add(self, document: Document, findings: Sequence[Finding] = ()) -> None:
        self.documents.append(document)
        self.findings += findings

    def annotate(self) -> None:
        """Print the findings as GitHub's workflow commands, beside the result."""
        for line in github_annotations(self.findings, Path.cwd()):
            click.echo(line, err=True)

    def all_findings(self) -> Document:
        """The errors as a table; warnings are in the tables of their own checks."""
        errors = [f for f in self.findings if f.level == "error"]
        shown = findings_document(errors, "Failed")
        return Document({**findings_document(self.findings, "").data}, shown.parts)


def compared(results: Results, comparisons: Sequence[Comparison]) -> None:
    """Side by side with the entries of another reference."""
    results.add(comparison_document(comparisons), worse_findings(comparisons))


def rounding(results: Results, comparisons: Sequence[Comparison]) -> None:
    """What will round in other places."""
    found = numerics(comparisons)
    results.add(numerics_document(found), numerics_findings(found))


def matrix(results: Results, ledgers: Sequence[Ledger]) -> None:
    """Toolchains side by side."""
    toolchains, found = rows(ledgers)
    results.add(matrix_document(toolchains, found), regression_findings(found))


def required(
    results: Results, requirements: Sequence[Requirement], ledgers: Sequence[Ledger]
) -> None:
    findings, remarks = check(requirements, ledgers)
    for remark in remarks:
        say(remark)
    results.add(Document({}), findings)


def locked(
    results: Results, ledgers: Sequence[Ledger], archs: Iterable[ArchRequest], file: Path,
    accepted: str | None, *, every_kernel: bool,
) -> None:  # fmt: skip
    """Compare with the lock. accepted: the reason to record what got worse instead of failing."""
    lock = locks.read_lock(file)
    found = locks.check_locked(lock, ledgers, archs, every_kernel=every_kernel)
    if len(found.unknown) == len(ledgers):
        raise UsageError(
            f"none of the {len(ledgers)} entries is in {file}, so nothing was checked; "
            "sparsekit lock records them"
        )
    if accepted is not None and found.findings:
        today = datetime.now(UTC).date().isoformat()
        locks.write_lock(locks.accept(lock, ledgers, accepted, today), file)
        say(f"{len(found.findings)} facts are accepted as they are now, in {file}")
    lines = [
        f"{len(ledgers)} entries against {file.name}: {len(found.findings)} facts worse, "
        f"{len(found.changed)} entries with other code that is no worse"
    ]
    for names, what in (
        (found.unknown, "not in the lock; sparsekit lock records them"),
        (found.missing, "in the lock and not made"),
    ):
        if names:
            more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
            lines.append(f"{what}: {'; '.join(names[:_SHOWN_NAMES])}{more}")
    data = {
        "lock": {
            "file": str(file), "changed": found.changed, "unknown": found.unknown,
            "missing": found.missing, "accepted": accepted,
        }
    }  # fmt: skip
    document = Document(data, (Lines(tuple(lines), "Lock"),))
    results.add(document, [] if accepted is not None else found.findings)
