"""Every spelling of the forms of the table on registers and of plain memory accesses, as PTX."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from sparsekit.emulator.isa import CHAPTERS
from sparsekit.emulator.table import Form

REGISTERS = (
    ".reg .pred p<9>; .reg .b16 h<9>; .reg .b32 r<9>; .reg .f32 f<9>; .reg .b64 l<9>;"
    " .reg .f64 g<9>; .reg .b128 q<9>;"
)
_LETTERS = {"pred": "p", "f32": "f", "f64": "g", "b128": "q", "f32x2": "l"}
_NARROW = {"f16", "bf16", "e4m3x2", "e5m2x2"}
CHAPTERS_OF_PLAIN_FORMS = (
    "integer", "logic", "floating", "half", "comparison", "conversion", "memory", "atomics",
)  # fmt: skip


def letter(kind: str) -> str:
    """The registers that hold a type; of 8 bits those of 32, which cvt and ld may use."""
    if kind in _LETTERS:
        return _LETTERS[kind]
    if kind in _NARROW:
        return "h"
    if kind.endswith("x2") or kind == "tf32":
        return "r"
    return {"8": "r", "16": "h", "32": "r", "64": "l"}[kind.lstrip("usbf")]


def forms(chapter: str) -> list[Form]:
    (module,) = [m for m in CHAPTERS if m.__name__.endswith(f".{chapter}")]
    return module.CHAPTER.forms


def opcodes(form: Form) -> Iterator[tuple[str, dict[str, str]]]:
    """(the text, the modifier of each group) of every choice of the groups, but for hints."""
    groups = [g for g in form.groups if not g.name.startswith("$")]
    choices = [sorted(g.choices) + [""] * g.optional for g in groups]
    for chosen in product(*choices):
        parts = {g.name: c for g, c in zip(groups, chosen, strict=True) if c}
        yield ".".join([form.base, *(c for c in chosen if c)]), parts


def kinds(form: Form, parts: dict[str, str], count: int) -> list[str]:
    """The type of each operand."""
    base, t = form.base, parts.get("t", "")
    sources = [t] * (count - 1)
    if base in ("setp", "set"):
        target = "pred" if base == "setp" else parts["d"]
        return [target, t, t, *["pred"] * (count - 3)]
    if base in ("selp", "slct"):
        return [t, t, t, parts.get("c", "pred")]
    if base == "testp":
        return ["pred", t]
    if base in ("popc", "clz", "bfind"):
        return ["b32", t]
    if base in ("bfe", "bfi"):
        return [t, *sources[:-2], "b32", "b32"]
    if base in ("shl", "shr"):
        return [t, t, "b32"]
    if base in ("dp4a", "dp2a"):
        return ["b32"] * 4
    if base == "lop3":
        return ["b32"] * 4 + ["table"] + ["pred"] * (count - 5)
    if parts.get("part") == "wide":
        wide = f"{t[0]}{2 * int(t[1:])}"
        return [wide, t, t, *[wide] * (count - 3)]
    if "pack" in parts:
        return ["b32"] * count
    if "d" in parts and base != "cvt":  # of mixed precision: the last operand is a single
        return ["f32", *sources[:-1], "f32"]
    return [parts.get("d", t), *sources]


def access(form: Form, text: str, parts: dict[str, str]) -> str:
    """A load, store or atomic operation, without a cache policy."""

    def held(first: int) -> str:
        names = [f"{letter(parts['t'])}{(first + k) % 9}" for k in range(int(parts["vec"][1:]))]
        return "{" + ", ".join(names) + "}"

    values = [
        held(first) if "vec" in parts else f"{letter(parts['t'])}{first}" for first in range(3)
    ]
    operands = {
        "ld": [values[0], "[l8]"], "ldu": [values[0], "[l8]"], "st": ["[l8]", values[0]],
        "red": ["[l8]", values[0]], "atom": [values[0], "[l8]", values[1]],
    }[form.base]  # fmt: skip
    return f"{text} {', '.join(operands + values[2:] * (parts.get('op') == 'cas'))};"


def instruction(form: Form, text: str, parts: dict[str, str], count: int) -> str:
    if form.base in ("ld", "ldu", "st", "red", "atom"):
        return access(form, text, parts)
    numbers: dict[str, int] = {}
    operands = []
    for kind in kinds(form, parts, count):
        if kind == "table":
            operands.append("0x96")
            continue
        which = letter(kind)
        numbers[which] = numbers.get(which, -1) + 1
        operands.append(f"{which}{numbers[which]}")
    if form.base == "setp" and parts["t"].endswith("x2"):
        operands[0] = "p0|p8"
    if form.base == "lop3" and count == 6:
        operands[0] = "r0|p8"
    return f"{text} {', '.join(operands)};"


def lines(chapter: str) -> Iterator[str]:
    for form in forms(chapter):
        for text, parts in opcodes(form):
            if parts.get("space") == "param::func":
                continue  # of a call alone
            for count in sorted(form.operands):
                yield instruction(form, text, parts, count)
