"""Whether the fields of a frozen dataclass hold what their annotations say."""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_SHOWN_CHARACTERS = 80
_PLAIN = (str, int, float, bool, types.NoneType)


def type_problems(value: Any, kind: Any, where: str = "") -> Iterator[str]:
    """What in the value is not of the annotated kind, each by the name of its field.

    kind: a class, a dataclass, or an annotation of the forms that the nouns use. A bool is no int,
    an int is a float.
    """
    if _is_plainly(value, kind):
        return
    origin, parameters = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        yield from _of_union(value, parameters, where)
    elif origin is Literal:
        if not any(value is p or (type(value) is type(p) and value == p) for p in parameters):
            yield _mismatch(where, " or ".join(map(repr, parameters)), value)
    elif origin is tuple:
        yield from _of_tuple(value, parameters, where)
    elif origin is collections.abc.Mapping:
        yield from _of_mapping(value, parameters, where)
    elif origin is collections.abc.Callable:
        if not callable(value):
            yield _mismatch(where, "a function", value)
    elif kind in (None, types.NoneType):
        if value is not None:
            yield _mismatch(where, "None", value)
    elif not _is_a(value, kind):
        yield _mismatch(where, _name(kind), value)
    elif is_dataclass(kind):
        yield from _of_fields(value, where)


def _of_fields(value: Any, where: str) -> Iterator[str]:
    hints = _hints(type(value))  # type: ignore[arg-type]  # classes are hashable
    # A name that is computed rests on fields that are not checked yet.
    name = value.name if "name" in hints else None
    label = f"{type(value).__name__} {name!r}" if isinstance(name, str) and name else where
    for field in fields(value):
        item, kind = getattr(value, field.name), hints[field.name]
        if not _is_plainly(item, kind):
            inner = f"{label}: {field.name}" if label else field.name
            yield from type_problems(item, kind, inner)


def _of_union(value: Any, kinds: Sequence[Any], where: str) -> Iterator[str]:
    if any(_is_plainly(value, kind) for kind in kinds):
        return
    found = [list(type_problems(value, kind, where)) for kind in kinds]
    if not all(found):
        return
    own = next((p for k, p in zip(kinds, found, strict=True) if type(value) is k), None)
    yield from own or [_mismatch(where, " or ".join(_name(k) for k in kinds), value)]


def _of_tuple(value: Any, parameters: Sequence[Any], where: str) -> Iterator[str]:
    if not isinstance(value, tuple):
        hint = "; a tuple of one is written (x,)" if parameters[-1] is Ellipsis else ""
        yield _mismatch(where, "a tuple", value) + hint
        return
    if parameters[-1] is Ellipsis:
        kinds = [parameters[0]] * len(value)
    else:
        kinds = list(parameters)
        if len(kinds) != len(value):
            yield _mismatch(where, f"a tuple of {len(kinds)}", value)
            return
    for i, (item, kind) in enumerate(zip(value, kinds, strict=True)):
        if not _is_plainly(item, kind):
            yield from type_problems(item, kind, f"{where}[{i}]")


def _of_mapping(value: Any, parameters: Sequence[Any], where: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield _mismatch(where, "a dictionary", value)
        return
    for key, item in value.items():
        if not _is_plainly(key, parameters[0]):
            yield from type_problems(key, parameters[0], f"{where}: key")
        if not _is_plainly(item, parameters[1]):
            yield from type_problems(item, parameters[1], f"{where}[{key!r}]")


def _is_plainly(value: Any, kind: Any) -> bool:
    """Whether that is so at first sight, as it is for most."""
    return kind is Any or (kind in _PLAIN and type(value) is kind)


def _is_a(value: Any, kind: type) -> bool:
    if isinstance(value, bool) and kind is not bool:
        return False
    return isinstance(value, (int, float) if kind is float else kind)


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _name(kind: Any) -> str:
    return {str: "a string", int: "an int", float: "a float", bool: "True or False"}.get(
        kind, "None" if kind is types.NoneType else getattr(kind, "__name__", str(kind))
    )


def _mismatch(where: str, wanted: str, value: Any) -> str:
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}..."
    return f"{where or 'it'} must be {wanted}, found {shown}"
