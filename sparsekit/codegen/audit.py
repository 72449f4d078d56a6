"""How a Triton kernel's code depends on what is known of its arguments.

Triton compiles another kernel for each of: an integer or address that is a multiple of 16, one that
is not, an integer that is 1. The one where everything is a multiple of 16 is the base; from it each
argument is then taken out alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sparsekit.codegen.facts import facts_of
from sparsekit.codegen.finding import Finding
from sparsekit.codegen.ledger import Ledger
from sparsekit.codegen.regression import bad
from sparsekit.model.kernel import Arg, Instance, Kernel, Promise, passed_args

DIVISOR = 16  # what Triton's own specialisation tells apart
ALL_MULTIPLES, NO_MULTIPLE, ONE = "all multiples of 16", "not a multiple of 16", "1"
_INTEGERS = frozenset({"i16", "i32", "i64", "u16", "u32", "u64"})


@dataclass(frozen=True)
class Specialisation:
    """What is known: all arguments are multiples of 16, but for `arg`, which is as `state` says."""

    arg: Arg | None
    state: str
    instance: Instance


@dataclass(frozen=True)
class Audited:
    """One entry under one specialisation. reasons: what is bad against the base."""

    specialisation: Specialisation
    ledger: Ledger
    reasons: tuple[str, ...]

    @property
    def fix(self) -> str:
        return _fix(self.specialisation) if self.reasons else ""


def specialisations(kernel: Kernel, instance: Instance) -> list[Specialisation]:
    """The base first, then what is left of it without each argument. An argument whose promise
    stands in the spec for every instance is always a multiple, and is not varied."""
    args: dict[str, Arg] = {}
    for entry in kernel.entries:
        args |= {a.name: a for a in passed_args(entry, replace(instance, ones=()))}
    varied = [a for a in args.values() if _can_vary(a)]
    everything = tuple(Promise(a.name, DIVISOR) for a in varied)
    base = replace(instance, assume=everything, ones=())
    found = [Specialisation(None, ALL_MULTIPLES, base)]
    for arg in varied:
        others = tuple(p for p in everything if p.arg != arg.name)
        found.append(Specialisation(arg, NO_MULTIPLE, replace(base, assume=others)))
        if not arg.is_pointer:
            one = replace(base, assume=others, ones=(arg.name,))
            found.append(Specialisation(arg, ONE, one))
    return found


def _can_vary(arg: Arg) -> bool:
    return arg.divisible_by % DIVISOR != 0 and (arg.is_pointer or arg.type in _INTEGERS)


def audited(
    base: Sequence[Ledger], others: Iterable[tuple[Specialisation, Sequence[Ledger]]]
) -> list[Audited]:
    """Each specialisation's entries against the same entries of the base."""
    known = {ledger.name.entry: facts_of(ledger) for ledger in base}
    found = []
    for specialisation, ledgers in others:
        for ledger in ledgers:
            reasons = bad(known[ledger.name.entry], facts_of(ledger))
            found.append(Audited(specialisation, ledger, reasons))
    return found


def audit_findings(found: Sequence[Audited]) -> list[Finding]:
    return [
        Finding("specialisation", "warning", a.ledger.name, _told(a), a.ledger.source)
        for a in found
        if a.reasons
    ]


def _told(audited_entry: Audited) -> str:
    specialisation = audited_entry.specialisation
    arg = specialisation.arg.name if specialisation.arg else ""
    reasons = ", ".join(audited_entry.reasons)
    return f"{arg} {specialisation.state}: {reasons}; {audited_entry.fix}"


def _fix(specialisation: Specialisation) -> str:
    arg = specialisation.arg
    if arg is None:
        return ""
    promise = f"Promise({arg.name!r}, {DIVISOR}) in spec.py"
    if specialisation.state == ONE:
        return f"keep {arg.name} out of specialisation: do_not_specialize=[{arg.name!r}]"
    if arg.is_pointer:
        return (
            f"assert that {arg.name} lies at a multiple of {DIVISOR} bytes, and promise it: "
            f"tl.multiple_of({arg.name}, {DIVISOR}), or {promise}"
        )
    if "stride" in arg.name:
        return (
            f"pad the stride to a multiple of {DIVISOR} elements, and promise it: "
            f"tl.multiple_of({arg.name}, {DIVISOR}), or {promise}"
        )
    return f"tl.multiple_of({arg.name}, {DIVISOR}) where it always is one, or {promise}"
