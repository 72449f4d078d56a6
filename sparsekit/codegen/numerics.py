"""What of a change in code changes rounding, from the rounding steps of both sides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsekit.codegen.finding import Finding
from sparsekit.codegen.ledger import Ledger, SassFacts
from sparsekit.codegen.rounding import FUSED, PRODUCT, RECIPROCAL, SUM
from sparsekit.codegen.verdict import Comparison

_SUM_STEPS = ("FADD", "DADD", "HADD2")
_REDUCTION = ("FFMA.RM", "FFMA.SAT")  # how expf of CUDA's library takes its argument apart
_PACKED = re.compile(r"^(FADD|FMUL|FFMA)2")
_SHOWN_STEPS = 6


@dataclass(frozen=True)
class Change:
    """What differs, and how it was and is."""

    what: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before} -> {self.now}"


@dataclass(frozen=True)
class Numerics:
    """changes is None where one side's code could not be read."""

    comparison: Comparison
    changes: tuple[Change, ...] | None


def numerics(comparisons: Sequence[Comparison]) -> list[Numerics]:
    return [Numerics(c, _changes(c.ours, c.base)) for c in comparisons]


def numerics_findings(found: Sequence[Numerics]) -> list[Finding]:
    pairs = [(n.comparison.ours, change) for n in found for change in n.changes or ()]
    return [Finding("rounding", "warning", e.name, str(c), e.source) for e, c in pairs]


def _changes(ours: Ledger, base: Ledger | None) -> tuple[Change, ...] | None:
    if base is None or base.sass is None or ours.sass is None:
        return None
    if ours.sass.text_sha256 == base.sass.text_sha256:
        return ()
    now, before = set(ours.sass.rounding), set(base.sass.rounding)
    if now == before:
        return ()
    pairs = (
        ("matrix instructions", _tensor(base.sass), _tensor(ours.sass)),
        ("subnormals", _flushing(before), _flushing(now)),
        ("multiply-add", _fusion(before), _fusion(now)),
        ("exponential", _exponential(before), _exponential(now)),
        ("division and roots", _division(before), _division(now)),
        ("order of sums", _order(before), _order(now)),
    )
    found = [Change(what, a, b) for what, a, b in pairs if a != b]
    if not found and _names(before) != _names(now):
        gone, new = _names(before) - _names(now), _names(now) - _names(before)
        found = [Change("other operations", _some(gone), _some(new))]
    return tuple(found)


def _names(steps: Iterable[str]) -> set[str]:
    """The operations alone: what feeds them differs with every unrolling and peeling. Two packed
    into one instruction round as they do alone."""
    return {_PACKED.sub(r"\1", step.partition("(")[0]) for step in steps}


def _tensor(sass: SassFacts) -> str:
    return ", ".join(sass.tensor) or "none"


def _flushing(steps: Iterable[str]) -> str:
    """The operations that flush, integer conversions of address arithmetic left out."""
    flush = {s.partition("(")[0] for s in steps if ".FTZ" in s and not s.startswith(("F2I", "I2F"))}
    return "flushed in " + ", ".join(sorted(flush)) if flush else "kept"


def _fusion(steps: Iterable[str]) -> str:
    """Whether products are rounded before they are added."""
    rounded = any(s.startswith(_SUM_STEPS) and PRODUCT in s for s in steps)
    fused = any(s.startswith(("FFMA", "DFMA", "HFMA2")) for s in steps)
    if rounded:
        return "products are rounded before they are added"
    return "fused, one rounding" if fused else "none"


def _exponential(steps: Iterable[str]) -> str:
    found = set(steps)
    if not any(s.startswith("MUFU.EX2") for s in found):
        return "none"
    exact = any(s.startswith(_REDUCTION) for s in found)
    return "exact (range reduction, then ex2)" if exact else "approximate (ex2 of a product)"


def _division(steps: Iterable[str]) -> str:
    """Whether a reciprocal or root of the hardware is refined until it is correctly rounded."""
    found = set(steps)
    if not any(s.startswith(("MUFU.RCP", "MUFU.RSQ")) for s in found):
        return "none"
    refined = any(s.startswith(("FFMA", "DFMA")) and RECIPROCAL in s for s in found)
    return "refined" if refined else "approximate"


def _order(steps: Iterable[str]) -> str:
    """Whether partial sums are added to each other, or values one by one."""
    joins = any(s.startswith(_SUM_STEPS) and _joins(_operands(s)) for s in steps)
    sums = any(s.startswith(_SUM_STEPS) for s in steps)
    if joins:
        return "partial sums joined (a tree)"
    return "one value after the other" if sums else "none"


def _operands(step: str) -> list[str]:
    """What its operands in registers are; constants are left out."""
    return step.partition("(")[2].rstrip(")").split(", ")


def _joins(operands: Sequence[str]) -> bool:
    return len(operands) > 1 and set(operands) <= {SUM, FUSED}


def _some(steps: Iterable[str]) -> str:
    listed = sorted(steps)
    more = f" and {len(listed) - _SHOWN_STEPS} more" if len(listed) > _SHOWN_STEPS else ""
    return ", ".join(listed[:_SHOWN_STEPS]) + more or "none"
