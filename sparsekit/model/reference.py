"""References as typed: `NAME[:VARIANT][@TOOLCHAIN][@git:REV]`.

NAME is an op, a kernel or a folder's path; REV a git revision of the kernel's own repository.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparsekit.errors import UsageError
from sparsekit.model.kernel import LANG_PREFIXES

# `py:package.module:function`: an installed function with an op's signature, beside the kernels.
CALLABLE_PREFIX = "py:"
_NAME = r"[A-Za-z0-9_.\-*?\[\]]+"
_REFERENCE = re.compile(
    rf"(?P<name>(?:[~./][^:@]*|{_NAME}(?:/{_NAME})*)/?)(?::(?P<variant>[\w.\-*?\[\]]+))?"
    r"(?:@(?P<toolchain>(?!git:)[\w.\-]+))?(?:@git:(?P<revision>.+))?"
)


@dataclass(frozen=True)
class Reference:
    """One reference. name may hold wildcards; what was left out is None."""

    name: str
    variant: str | None = None
    toolchain: str | None = None
    revision: str | None = None

    @property
    def is_path(self) -> bool:
        """Whether the name is a folder's path: it has a slash that is not behind a language."""
        lang, slash, rest = self.name.partition("/")
        of_lang = lang in LANG_PREFIXES.values() and rest and "/" not in rest
        return self.name in (".", "..", "~") or bool(slash and not of_lang)

    def __str__(self) -> str:
        text = self.name + (f":{self.variant}" if self.variant else "")
        text += f"@{self.toolchain}" if self.toolchain else ""
        return text + (f"@git:{self.revision}" if self.revision else "")


def parse_reference(text: str) -> Reference:
    """The parts of a reference. Raises UsageError with the form that is taken."""
    match = _REFERENCE.fullmatch(text)
    if not match:
        raise UsageError(
            f"{text!r} is no reference: expected NAME[:VARIANT][@TOOLCHAIN][@git:REV], for "
            "instance sparse_prefill, cu/sparse_prefill:noskip, gated_pool:unroll2@triton-3.8.0, "
            "sparse_prefill@git:main or ./folder"
        )
    return Reference(match["name"], match["variant"], match["toolchain"], match["revision"])
