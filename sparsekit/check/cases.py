"""Which cases of which ops a command runs; light, so that mistakes in asking are told at once."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from sparsekit.errors import UsageError
from sparsekit.model.op import Case, Op


def cases_of_ops(
    ops: Sequence[Op], patterns: Sequence[str], tags: Sequence[str]
) -> list[tuple[Op, list[Case]]]:
    """Those of the ops that have such cases, with them: by patterns of names, or by tag.

    Raises UsageError when no op has one, and for a pattern that is of no case of any op.
    """
    every = [case for op in ops for case in op.cases]
    unknown = [p for p in patterns if not any(fnmatchcase(c.name, p) for c in every)]
    chosen = [(op, [c for c in op.cases if _is_chosen(c, patterns, tags)]) for op in ops]
    found = [(op, cases) for op, cases in chosen if cases]
    if unknown or (ops and not found):
        named = " or ".join(repr(p) for p in unknown)
        asked = f"case {named}" if unknown else f"case with the tag {' or '.join(tags)}"
        names = [", ".join(case.name for case in op.cases) for op in ops]
        if len(ops) == 1:
            raise UsageError(f"op {ops[0].name} has no {asked}; its cases are {names[0]}")
        having = "; ".join(f"of {op.name}: {text}" for op, text in zip(ops, names, strict=True))
        raise UsageError(f"no op has a {asked}; the cases are, {having}")
    return found


def _is_chosen(case: Case, patterns: Sequence[str], tags: Sequence[str]) -> bool:
    if patterns:
        return any(fnmatchcase(case.name, p) for p in patterns)
    return bool(set(case.tags) & set(tags))
