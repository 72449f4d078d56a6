"""Two entries side by side: how alike their code is, and which facts got worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsekit.codegen.facts import Fact, facts_of, is_worse, kind_of
from sparsekit.codegen.finding import Finding
from sparsekit.codegen.ledger import Ledger

IDENTICAL, SAME_INSTRUCTIONS, SAME_FACTS, DIFFERENT = (
    "identical code",
    "same instructions",
    "same widths and resources",
    "different",
)
_DIGESTS = frozenset({"text_sha256", "instructions_sha256"})


@dataclass(frozen=True)
class Difference:
    """A fact that differs; before is the base's."""

    fact: str
    before: Fact
    now: Fact

    @property
    def worse(self) -> bool:
        return is_worse(self.fact, self.before, self.now)


@dataclass(frozen=True)
class Comparison:
    """An entry against its base. base is None where there is no counterpart; verdict is None where
    one side's code could not be read."""

    ours: Ledger
    base: Ledger | None
    verdict: str | None
    differences: tuple[Difference, ...] = ()

    @property
    def worse(self) -> tuple[Difference, ...]:
        return tuple(d for d in self.differences if d.worse)


def compare(ours: Ledger, base: Ledger) -> Comparison:
    now, before = facts_of(ours), facts_of(base)
    differences = tuple(
        Difference(name, before.get(name), now.get(name))
        for name in sorted({*now, *before} - _DIGESTS)
        if before.get(name) != now.get(name)
    )
    if ours.sass is None or base.sass is None:
        return Comparison(ours, base, None, differences)
    if ours.sass.text_sha256 == base.sass.text_sha256:
        verdict = IDENTICAL
    elif ours.sass.instructions_sha256 == base.sass.instructions_sha256:
        verdict = SAME_INSTRUCTIONS
    elif all(_is_of_the_code_alone(d.fact) for d in differences):
        verdict = SAME_FACTS
    else:
        verdict = DIFFERENT
    return Comparison(ours, base, verdict, differences)


def _is_of_the_code_alone(name: str) -> bool:
    return kind_of(name).group == "code"


def compare_all(ours: Sequence[Ledger], bases: Sequence[Ledger]) -> list[Comparison]:
    """Each of ours against the base that it is closest to by name: the same arch always, then the
    same entry, instance, variant and toolchain as far as there is one."""
    return [_closest(ledger, bases) for ledger in ours]


def _closest(ours: Ledger, bases: Sequence[Ledger]) -> Comparison:
    same_arch = [b for b in bases if b.name.arch == ours.name.arch]
    if not same_arch:
        return Comparison(ours, None, None)
    entries = {b.name.entry for b in same_arch}
    if len(entries) > 1 and ours.name.entry not in entries:
        return Comparison(ours, None, None)
    return compare(ours, max(same_arch, key=lambda b: _likeness(ours, b)))


def _likeness(ours: Ledger, base: Ledger) -> tuple[bool, ...]:
    a, b = ours.name, base.name
    return (
        a.entry == b.entry,
        a.instance == b.instance,
        a.variant == b.variant,
        a.toolchain == b.toolchain,
    )


def worse_findings(comparisons: Sequence[Comparison]) -> list[Finding]:
    """Everything that got worse, as warnings: a comparison alone fails nothing."""
    return [
        Finding("worse", "warning", c.ours.name, f"{d.fact} {d.before} -> {d.now}", c.ours.source)
        for c in comparisons
        for d in c.worse
    ]
