"""What JSON from a file must look like, declared once, so that what comes after can rely on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

# Quantities outside are no measurement; inside them products and quotients stay finite.
_LEAST, _MOST = 1e-30, 1e30
_SHOWN_CHARACTERS = 40


class Mismatch(ValueError):
    """A value that is not what was declared. Says where it stands, what was wanted and found."""


class Shape(Protocol):
    """Something that a value can be held against."""

    def check(self, value: Any, where: str) -> None:
        """Raise Mismatch unless the value fits. where: its place in the file."""


@dataclass(frozen=True)
class Leaf:
    """A value without parts. wanted: in words."""

    wanted: str
    holds: Callable[[Any], bool]

    def check(self, value: Any, where: str) -> None:
        if not self.holds(value):
            raise _mismatch(where, self.wanted, value)


@dataclass(frozen=True)
class Maybe:
    """The shape, or null for what was not measured."""

    shape: Shape

    def check(self, value: Any, where: str) -> None:
        if value is not None:
            self.shape.check(value, where)


@dataclass(frozen=True)
class Listed:
    """A list of the shape."""

    shape: Shape

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise _mismatch(where, "a list", value)
        for number, item in enumerate(value):
            self.shape.check(item, f"{where}[{number}]")


@dataclass(frozen=True)
class Mapped:
    """An object with any names, each of the shape."""

    shape: Shape

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _mismatch(where, "an object", value)
        for name, item in value.items():
            TEXT.check(name, f"a name in {where}")
            self.shape.check(item, f"{where}[{_short(name)}]")


@dataclass(frozen=True)
class Record:
    """An object with known names. required, optional: their shapes; only: the names that there may
    be, None where others are of no account."""

    required: Mapping[str, Shape]
    optional: Mapping[str, Shape] = field(default_factory=dict)
    only: Collection[str] | None = None

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _mismatch(where, "an object", value)
        inside = f"{where}." if where else ""
        for name in self.required:
            if name not in value:
                raise Mismatch(f"{inside}{name} is missing")
        for name, shape in (*self.required.items(), *self.optional.items()):
            if name in value:
                shape.check(value[name], f"{inside}{name}")
        if self.only is not None and (unknown := [n for n in value if n not in self.only]):
            raise Mismatch(f"{where or 'the file'} has {_short(unknown[0])}, which is not known")


def _mismatch(where: str, wanted: str, found: Any) -> Mismatch:
    return Mismatch(f"{where or 'the file'}: expected {wanted}, found {found_text(found)}")


def found_text(value: Any) -> str:
    """A JSON value as a message shows it, kept short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return _short(value)


def _short(value: Any) -> str:
    if isinstance(value, int) and abs(value) > _MOST:  # its digits may be more than Python converts
        return "a number out of range"
    told = ascii(value)
    return told if len(told) <= _SHOWN_CHARACTERS else f"{told[:_SHOWN_CHARACTERS]}..."


def _is_text(value: Any) -> bool:
    """Lone surrogates, which JSON can spell, are in no text that can be written."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_real(value: Any) -> bool:
    return isinstance(value, float) or _is_number(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value == 0 or _LEAST <= abs(value) <= _MOST


TEXT = Leaf("text", _is_text)
FLAG = Leaf("true or false", lambda value: isinstance(value, bool))
REAL = Leaf("a number", _is_real)
NUMBER = Leaf("a finite number", _is_number)
AMOUNT = Leaf("a finite number, not negative", lambda value: _is_number(value) and value >= 0)
POSITIVE = Leaf("a finite number above 0", lambda value: _is_number(value) and value > 0)
COUNT = Leaf(
    "a whole number, not negative",
    lambda value: isinstance(value, int) and _is_number(value) and value >= 0,
)
