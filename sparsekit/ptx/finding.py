"""What the lint finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparsekit.ptx.module import Loc


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. severity is "error" or "warning"; entry the .entry or .func it stands in.

    register: the one at fault, empty where it is no register. line is that of the PTX text, loc
    that of the source where line information is present.
    """

    severity: Literal["error", "warning"]
    rule: str
    entry: str
    register: str
    line: int
    loc: Loc | None
    message: str
