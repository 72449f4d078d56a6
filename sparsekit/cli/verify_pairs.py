"""Which subjects `verify --bitwise` compares with which.

torch is imported here, and only when a verification starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparsekit.cli.session import Session
from sparsekit.discover import Choice
from sparsekit.errors import SpecError
from sparsekit.model.arch import parse_arch
from sparsekit.toolchain.find import Toolchains

if TYPE_CHECKING:
    from sparsekit.check.campaign import Pair

Subjects = Callable[[Choice, str], list[Any]]  # of a choice and the name of a variant


def across_toolchains(session: Session, choice: Choice, subjects: Subjects) -> list[Pair]:
    """Each variant under every other toolchain with itself under the one it would use."""
    from sparsekit.check.campaign import Pair

    own = session.planner.toolchain(choice).id
    others = [t.id for t in Toolchains(session.settings).all(choice.kernel.lang) if t.id != own]
    return [
        Pair(subject, base)
        for name in choice.variants
        for other in others
        for subject in subjects(replace(choice, toolchain=other), name)
        for base in subjects(choice, name)
        if subject.arch == base.arch
    ]


def with_bases(
    session: Session, choice: Choice, bases: Sequence[tuple[Choice, str]], subjects: Subjects
) -> list[Pair]:
    """Each variant with its base, and with itself on new buffers; arch by arch."""
    from sparsekit.check.campaign import Pair

    pairs = []
    for name in choice.variants:
        own = subjects(choice, name)
        known = choice.kernel.variant(name)
        given = [subjects(*base) for base in bases]
        if not bases and known is not None and known.same_bits_as:
            given = [subjects(*_base(session, choice, known.same_bits_as))]
        for base in given:
            pairs += [Pair(s, b) for s in own for b in base if _alike(s.arch, b.arch)]
        if not bases:
            pairs += [Pair(s, s) for s in own]
    return pairs


def _base(session: Session, choice: Choice, name: str) -> tuple[Choice, str]:
    """What same_bits_as means: a variant of the choice's own kernel, or of another one."""
    if ":" not in name:
        return choice, name
    (base,) = session.catalog.resolve([name])
    (variant,) = base.variants
    if base.op.name != choice.op.name:
        raise SpecError(
            f"{choice.kernel.spec_file}: same_bits_as must name a kernel of {choice.op.name}, "
            f"found {name}, which computes {base.op.name}"
        )
    return base, variant


def _alike(arch: str | None, other: str | None) -> bool:
    """Whether both are for the same devices: sm_90 and sm_90a are."""
    return arch == other or (
        arch is not None
        and other is not None
        and parse_arch(arch).compute_capability == parse_arch(other).compute_capability
    )
