"""From what references mean to operators, the same way in every command that runs kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparsekit.cli.options import say
from sparsekit.cli.session import Session
from sparsekit.discover import Choice
from sparsekit.errors import UsageError
from sparsekit.kernel_folders import check_case
from sparsekit.model.op import Case, Op, with_settings
from sparsekit.store.notes import Notes

if TYPE_CHECKING:
    from sparsekit.operators.operator import Operator


def by_op(choices: Sequence[Choice]) -> list[tuple[Op, list[Choice]]]:
    """The choices of each op, in the order in which they were named."""
    groups: dict[str, tuple[Op, list[Choice]]] = {}
    for choice in choices:
        groups.setdefault(choice.op.name, (choice.op, []))[1].append(choice)
    return list(groups.values())


def case_of(op: Op, name: str, settings: Mapping[str, str]) -> Case:
    """The op's case of that name, with `--set` applied. Raises UsageError with what there is."""
    found = op.case(name)
    if found is None:
        names = ", ".join(c.name for c in op.cases)
        raise UsageError(f"op {op.name} has no case {name!r}; its cases are {names}")
    return changed_case(op, found, settings)


def changed_case(op: Op, case: Case, settings: Mapping[str, str]) -> Case:
    """The case with `--set` applied. Raises UsageError where that is no case of the op."""
    try:
        case = with_settings(op, case, settings)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if problem := check_case(op, case):
        changes = " ".join(f"--set {name}={value}" for name, value in settings.items())
        raise UsageError(f"{changes}: {problem}")
    return case


def require_choice(choices: Iterable[Choice], batch_invariant: bool) -> None:
    """Raise UsageError where `--no-batch-invariant` has no choice to look at the batch for."""
    if not batch_invariant and not any(choice.by_op for choice in choices):
        raise UsageError(
            "--no-batch-invariant is for an op, whose kernel is chosen: name one; a kernel that "
            "is named runs whatever the batch"
        )


def only(choice: Choice, variant: str) -> Choice:
    """The choice narrowed to one variant: that one runs, or the call is refused."""
    return replace(choice, variants=(variant,), by_op=False)


def operator_of(
    session: Session, choices: Sequence[Choice], *, build: bool, driver: Any = None,
    batch_invariant: bool = True,
) -> Operator:  # fmt: skip
    """The operator that runs one of the choices, all of one op; torch is imported here.

    driver: that emulates; without it the GPU's. batch_invariant: False lets the choice look at the
    batch.
    """
    from sparsekit.operators.first_use import FirstUse
    from sparsekit.operators.operator import Operator

    root = session.store.root
    first_use = None if driver else FirstUse(Notes(root), ("--cache-dir", str(root.absolute())))
    return Operator(
        choices[0].op, choices, session.planner, session.store, build=build, note=say,
        driver=driver, first_use=first_use, batch_invariant=batch_invariant,
    )  # fmt: skip
