"""References as typed: `NAME[:VARIANT][@TOOLCHAIN][@git:REV]`.

NAME is an op, a kernel or a folder's path; REV a git revision of the kernel's own repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sparsekit.errors import UsageError
from sparsekit.model.kernel import LANG_PREFIXES

# `py:package.module:function`: an installed function with an op's signature, beside the kernels.
CALLABLE_PREFIX = "py:"
_NAME = r"[A-Za-z0-9_.\-*?\[\]]+"
_SUFFIX = (
    r"(?::(?P<variant>[\w.\-*?\[\]]+))?"
    r"(?:@(?P<toolchain>(?!git:)[\w.\-]+))?(?:@git:(?P<revision>.+))?"
)
_REFERENCE = re.compile(rf"(?P<name>(?:[~./][^:@]*|{_NAME}(?:/{_NAME})*)/?){_SUFFIX}")
_AFTER_A_PATH = re.compile(_SUFFIX)


@dataclass(frozen=True)
class Reference:
    """One reference. name may hold wildcards; what was left out is None.

    found: the name is that of a folder that is there, whatever characters it has.
    """

    name: str
    variant: str | None = None
    toolchain: str | None = None
    revision: str | None = None
    found: bool = False

    @property
    def is_path(self) -> bool:
        """Whether the name is a folder's path: it has a slash that is not behind a language."""
        return self.found or _is_path(self.name)

    def __str__(self) -> str:
        text = self.name + (f":{self.variant}" if self.variant else "")
        text += f"@{self.toolchain}" if self.toolchain else ""
        return text + (f"@git:{self.revision}" if self.revision else "")


def parse_reference(text: str, is_folder: Callable[[str], bool] = lambda path: False) -> Reference:
    """The parts of a reference. Raises UsageError with the form that is taken.

    is_folder: asked about paths only, and about what cannot be a name; the longest folder that is
    there is the path, so that it may hold `:` and `@`.
    """
    match = _REFERENCE.fullmatch(text)
    if not match or _is_path(text):
        for end in _ends_of_paths(text):
            after = _AFTER_A_PATH.fullmatch(text[end:])
            if after and is_folder(text[:end]):
                return _reference(text[:end], after, found=True)
    if not match:
        raise UsageError(
            f"{text!r} is no reference, nor a folder: expected NAME[:VARIANT][@TOOLCHAIN]"
            "[@git:REV], for instance sparse_prefill, cu/sparse_prefill:noskip, "
            "gated_pool:unroll2@triton-3.8.0, sparse_prefill@git:main or ./folder"
        )
    return _reference(match["name"], match)


def _reference(name: str, match: re.Match[str], *, found: bool = False) -> Reference:
    return Reference(name, match["variant"], match["toolchain"], match["revision"], found)


def _is_path(name: str) -> bool:
    lang, slash, rest = name.partition("/")
    of_lang = lang in LANG_PREFIXES.values() and rest and "/" not in rest
    return name in (".", "..", "~") or bool(slash and not of_lang)


def _ends_of_paths(text: str) -> list[int]:
    """Where the path may end: at the end, or before a `:` or `@`; the longest first."""
    return [len(text), *(i for i in range(len(text) - 1, 0, -1) if text[i] in ":@")]
