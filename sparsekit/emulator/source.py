"""Python source in the making: lines, names for values, and what is bound once per range.

One numpy vector carries one register of all threads of a convoy; DTYPES says of which type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DTYPES = {
    "pred": "?", "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2",
    "f16": "f2", "bf16": "u2", "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4",
    "f16x2": "u4", "bf16x2": "u4", "u16x2": "u4", "s16x2": "i4", "tf32": "u4",
    "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8", "f32x2": "u8", "b128": "c16",
}  # fmt: skip
"""The numpy type that carries a PTX type: bits as unsigned, 128 of them as complex128."""

WIDTH_BYTES = {"?": 0, "u1": 1, "i1": 1, "u2": 2, "i2": 2, "f2": 2, "u4": 4, "i4": 4, "f4": 4}
WIDTH_BYTES |= {"u8": 8, "i8": 8, "f8": 8, "c16": 16}


class Source:
    """The lines of one block's function, and all that they name."""

    def __init__(self) -> None:
        self.env: dict[str, object] = {}
        self._lines: list[str] = []
        self._binds: dict[tuple[Any, ...], str] = {}
        self._count = 0

    def line(self, text: str) -> None:
        self._lines.append(text)

    def temp(self, expression: str) -> str:
        """Name the value of an expression."""
        self._count += 1
        name = f"v{self._count}"
        self._lines.append(f"{name} = {expression}")
        return name

    def fn(self, function: Callable[..., Any], name: str = "") -> str:
        """The name of a function that the source may call."""
        name = name or function.__name__
        known = self.env.setdefault(name, function)
        if known is not function:
            raise ValueError(f"two functions are called {name}")
        return name

    def bind(self, kind: str, *what: object) -> str:
        """A name for what is fixed while the convoy's range is: what Convoy.KIND(*what) gives."""
        key = (kind, *what)
        found = self._binds.get(key)
        if found is None:
            found = self._binds[key] = f"b{len(self._binds)}"
        return found

    def const(self, value: int | float, dtype: str) -> str:
        return self.bind("const", value, dtype)

    def fresh(self, count: int) -> list[str]:
        """New names, yet without values."""
        first = self._count + 1
        self._count += count
        return [f"v{first + k}" for k in range(count)]

    def function(self, results: tuple[str, ...]) -> str:
        """The source of `bind`, which gives the block's function for one range of threads."""
        self.line(f"return ({''.join(f'{name}, ' for name in results)})")
        bound = ", ".join(self._binds.values())
        binds = f" {bound}, = L.bind(BOUND)\n" if bound else ""
        self.env["BOUND"] = tuple(self._binds)
        body = "".join(f"  {text}\n" for text in self._lines)
        return f"def bind(L):\n{binds} def run(m):\n{body} return run\n"
