"""Requirements on facts, as typed: `gather.min_bytes>=16`, `spills==0`, `loop0.loads>=8`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsekit.codegen.facts import Fact, fact, facts_of, kind_of
from sparsekit.codegen.finding import Finding
from sparsekit.codegen.ledger import Ledger
from sparsekit.errors import UsageError

_FORM = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
    ">": operator.gt, "<": operator.lt,
}  # fmt: skip


@dataclass(frozen=True)
class Requirement:
    fact: str
    relation: str
    value: float | str

    def holds(self, found: Fact) -> bool:
        if isinstance(self.value, str) or isinstance(found, str) or found is None:
            return (found == self.value) == (self.relation == "==")
        return _OPERATORS[self.relation](found, self.value)

    def __str__(self) -> str:
        value = f"{self.value:g}" if isinstance(self.value, float) else self.value
        return f"{self.fact}{self.relation}{value}"


def parse_requirement(text: str) -> Requirement:
    """Raises UsageError for what is no requirement, and for a fact that means nothing."""
    match = _FORM.fullmatch(text)
    if not match:
        raise UsageError(
            f"{text!r} is no requirement: expected FACT RELATION VALUE, as in "
            "'gather.min_bytes>=16', 'spills==0' or 'loop0.loads>=8'"
        )
    name, relation, value = match.groups()
    kind_of(name)
    if name.endswith("_sha256"):
        if relation not in ("==", "!="):
            raise UsageError(f"{text!r}: a digest is compared with == or !=")
        return Requirement(name, relation, value)
    try:
        return Requirement(name, relation, float(value))
    except ValueError:
        raise UsageError(f"{text!r}: expected a number, found {value!r}") from None


def check(
    requirements: Sequence[Requirement], ledgers: Sequence[Ledger]
) -> tuple[list[Finding], list[str]]:
    """The entries that fail, and remarks on entries that a requirement has nothing to say of.

    Raises UsageError for a fact that none of the entries has: it would hold of nothing.
    """
    findings: list[Finding] = []
    remarks: list[str] = []
    known = [(ledger, facts_of(ledger)) for ledger in ledgers]
    for requirement in requirements:
        values = [(ledger, fact(facts, requirement.fact)) for ledger, facts in known]
        lacking = [ledger for ledger, value in values if value is None]
        if len(lacking) == len(values):
            raise UsageError(
                f"--require {requirement}: none of the {len(values)} entries has "
                f"{requirement.fact} ({kind_of(requirement.fact).about}), so nothing was checked"
            )
        if lacking:
            remarks.append(
                f"{requirement} says nothing of {len(lacking)} entries without "
                f"{requirement.fact}: {', '.join(sorted({e.name.entry for e in lacking}))}"
            )
        findings += [
            _finding(requirement, ledger, value)
            for ledger, value in values
            if value is not None and not requirement.holds(value)
        ]
    return findings, remarks


def _finding(requirement: Requirement, ledger: Ledger, value: Fact) -> Finding:
    message = f"required {requirement}, found {value}"
    return Finding("requirement", "error", ledger.name, message, ledger.source)
