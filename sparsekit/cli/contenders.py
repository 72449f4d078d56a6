"""What `bench` and `profile` compare: contenders by op, the base first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sparsekit.cli.selection import by_op, only, operator_of, require_choice
from sparsekit.cli.session import Session
from sparsekit.discover import Choice
from sparsekit.errors import UsageError
from sparsekit.model.op import Op
from sparsekit.model.reference import CALLABLE_PREFIX

if TYPE_CHECKING:
    from sparsekit.measure.contender import Contender

_COMMIT_DIGITS = 12


@dataclass(frozen=True)
class Comparison:
    """What is compared on the cases of an op. contenders(): the base first; it imports torch, and
    raises for a `py:` reference that cannot be imported."""

    op: Op
    contenders: Callable[[], list[Contender]]


def comparisons_of(
    session: Session, references: Sequence[str], against: Sequence[str], *, build: bool,
    batch_invariant: bool = True,
) -> list[Comparison]:  # fmt: skip
    """What is compared of every op that the references mean, `against` first.

    Without references every kernel, its variants behind the one whose bits they give. A bare op is
    one contender: the kernel that selection picks, which looks at the batch where batch_invariant
    is False. `py:` references join the one op of the others.
    Raises UsageError where that op cannot be told, or nothing is picked that could look at it.
    """
    texts = [*against, *references]
    named = [t for t in texts if not t.startswith(CALLABLE_PREFIX)]
    if texts and not named:
        raise UsageError(f"{texts[0]} does not say which op it computes; name a kernel or op too")
    if not named:
        require_choice((), batch_invariant)
        groups = by_op(session.catalog.resolve([]))
        return [
            Comparison(op, partial(_of_choices, session, choices, build)) for op, choices in groups
        ]
    found = {text: session.catalog.resolve([text]) for text in named}
    require_choice([c for choices in found.values() for c in choices], batch_invariant)
    ops = {choice.op.name: choice.op for choices in found.values() for choice in choices}
    if len(ops) > 1 and (against or len(named) < len(texts)):
        raise UsageError(f"what is compared must compute one op, found {', '.join(ops)}")
    return [
        Comparison(op, partial(_of_texts, session, texts, found, op, build, batch_invariant))
        for op in ops.values()
    ]


def _of_texts(
    session: Session, texts: Sequence[str], found: dict[str, tuple[Choice, ...]], op: Op,
    build: bool, batch_invariant: bool,
) -> list[Contender]:  # fmt: skip
    from sparsekit.measure.contender import KernelContender, callable_contender

    contenders: list[Contender] = []
    for text in texts:
        if text.startswith(CALLABLE_PREFIX):
            contenders.append(callable_contender(text, op))
            continue
        choices = [c for c in found[text] if c.op.name == op.name]
        if choices and choices[0].by_op:
            operator = operator_of(session, choices, build=build, batch_invariant=batch_invariant)
            contenders.append(KernelContender(text, operator))
        else:
            contenders += _of_choices(session, choices, build)
    first: dict[str, Contender] = {}
    for contender in contenders:
        first.setdefault(contender.label, contender)
    return list(first.values())


def _of_choices(session: Session, choices: Sequence[Choice], build: bool) -> list[Contender]:
    from sparsekit.measure.contender import KernelContender

    contenders: list[Contender] = []
    for choice in choices:
        bases = {v.same_bits_as for v in choice.kernel.variants}
        for variant in sorted(choice.variants, key=lambda name: name not in bases):
            operator = operator_of(session, [only(choice, variant)], build=build)
            contenders.append(KernelContender(_label(choice, variant), operator))
    return contenders


def _label(choice: Choice, variant: str) -> str:
    label = f"{choice.kernel.name}:{variant}"
    label += f"@{choice.toolchain}" if choice.toolchain else ""
    return label + (f"@git:{choice.revision[:_COMMIT_DIGITS]}" if choice.revision else "")
