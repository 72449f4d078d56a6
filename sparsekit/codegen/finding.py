"""What a check found fault with: one shape for requirements, locks, regressions and audits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparsekit.codegen.ledger import Name

RULES = {
    "requirement": "A fact of generated code does not meet what was required of it",
    "lock": "A fact of generated code is worse than codegen.lock.json records",
    "worse": "A fact of generated code is worse than in the code it is compared with",
    "regression": "A toolchain makes much worse code than an earlier one",
    "specialisation": "A kernel's code is much worse for some values of an argument",
    "rounding": "Generated code rounds in other places than the code it is compared with",
}


@dataclass(frozen=True)
class Finding:
    """rule: a key of RULES. error: it fails the check; a warning does not. source: the file that
    the code was compiled from."""

    rule: str
    level: Literal["error", "warning"]
    name: Name
    message: str
    source: str = ""
