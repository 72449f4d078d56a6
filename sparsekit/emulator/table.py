"""The instruction table: which opcodes, modifiers and operand counts are modelled, and how.

Strict: what no form of the table takes in full raises UnsupportedError with its PTX line. Modifiers
without an effect on results stand in HINTS, each with the reason; so do whole instructions, in
their forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparsekit.emulator.faults import UnsupportedError
from sparsekit.ptx import Instruction
from sparsekit.ptx.operands import Immediate, Operand

if TYPE_CHECKING:
    from sparsekit.emulator.convoy import Convoy
    from sparsekit.emulator.machine import Machine
    from sparsekit.emulator.writer import Writer

_FULL_MASK = 0xFFFF_FFFF
_TYPE_GROUPS = frozenset({"a", "b", "c", "d", "t", "ta", "tb"})
_WITH_MEMBERS = frozenset({"shfl", "vote", "match", "redux", "elect"})

Emit = Callable[["Writer", "Matched"], "tuple[str, ...] | None"]
Handler = Callable[["Machine", "Convoy", "Matched", tuple[object, ...]], None]

HINTS: Mapping[str, tuple[str, str]] = {
    "cache": ("ca|cg|cs|lu|cv|wb|wt", "cache operators: there is no cache"),
    "evict": (
        "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate",
        "eviction priority: there is no cache",
    ),
    "evict2": (
        "L2::evict_normal|L2::evict_first|L2::evict_last",
        "eviction priority: there is no cache",
    ),
    "prefetch": ("L2::64B|L2::128B|L2::256B", "prefetch size: there is no cache"),
    "policy": ("L2::cache_hint", "cache policy operand: there is no cache"),
    "nc": ("nc", "read-only cache: the data are the same"),
    "uni": ("uni", "a promise that all lanes branch alike: taken lane by lane"),
}
"""Groups of modifiers that no result depends on, by the name that patterns use, with the reason."""


@dataclass(frozen=True, slots=True)
class Group:
    """One place of a pattern: the modifiers that may stand there."""

    name: str
    choices: frozenset[str]
    optional: bool


@dataclass(frozen=True)
class Form:
    """One form of an instruction. emit writes its Python; control is run after its block.

    operands: the counts allowed. hint: why the instruction has no effect on results, for one
    without emit. section: of the PTX ISA.
    """

    base: str
    groups: tuple[Group, ...]
    operands: frozenset[int]
    section: str
    emit: Emit | None = None
    control: Handler | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Matched:
    """An instruction with the form that models it. index: its number in the Code."""

    instruction: Instruction
    form: Form
    parts: Mapping[str, str]
    index: int

    def __getitem__(self, name: str) -> str:
        """The modifier in a place of the pattern, empty where an optional one is absent."""
        return self.parts.get(name, "")

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.instruction.operands

    def unsupported(self, why: str) -> UnsupportedError:
        return unsupported(self.instruction, why)


class Chapter:
    """The forms of one chapter of the PTX ISA; a module's emitters enter themselves."""

    def __init__(self, section: str) -> None:
        self.section = section
        self.forms: list[Form] = []

    def form(
        self, opcode: str, operands: int | Iterable[int], control: Handler | None = None
    ) -> Callable[[Emit], Emit]:
        """Enter `base group group?`; a group is `modifier`, `name=a|b` or `$hint`, `?` optional."""
        counts = frozenset((operands,) if isinstance(operands, int) else operands)
        base, groups = parse_pattern(opcode)

        def enter(emit: Emit) -> Emit:
            self.forms.append(Form(base, groups, counts, self.section, emit, control))
            return emit

        return enter

    def hint(self, opcode: str, operands: int | Iterable[int], reason: str) -> None:
        """Enter an instruction that no result depends on."""
        counts = frozenset((operands,) if isinstance(operands, int) else operands)
        base, groups = parse_pattern(opcode)
        self.forms.append(Form(base, groups, counts, self.section, hint=reason))


def parse_pattern(pattern: str) -> tuple[str, tuple[Group, ...]]:
    """`mul part=hi|lo t=u16|s16 sat?` -> ("mul", groups)."""
    base, *texts = pattern.split()
    groups = []
    for text in texts:
        optional = text.endswith("?")
        text = text.removesuffix("?")
        if text.startswith("$"):
            name = text.removeprefix("$")
            groups.append(Group(f"${name}", frozenset(HINTS[name][0].split("|")), optional=True))
            continue
        name, equals, choices = text.partition("=")
        groups.append(Group(name, frozenset((choices if equals else name).split("|")), optional))
    return base, tuple(groups)


def match_modifiers(form: Form, modifiers: tuple[str, ...]) -> dict[str, str] | None:
    """The modifier of each group; None where one fits no group or a needed group is empty.

    Compilers write some modifiers in an order of their own, so each goes to the first group that is
    still free for it; types must come in the pattern's order.
    """
    parts: dict[str, str] = {}
    last_type = -1
    for modifier in modifiers:
        for position, group in enumerate(form.groups):
            if modifier in group.choices and group.name not in parts:
                parts[group.name] = modifier
                if group.name in _TYPE_GROUPS:
                    if position < last_type:
                        return None
                    last_type = position
                break
        else:
            return None
    if any(not group.optional and group.name not in parts for group in form.groups):
        return None
    return parts


class Table:
    """All forms by base opcode; remembers what each opcode text matched."""

    def __init__(self, chapters: Iterable[Chapter]) -> None:
        self.forms: dict[str, list[Form]] = {}
        self._found: dict[str, list[tuple[Form, dict[str, str]]]] = {}
        for chapter in chapters:
            for form in chapter.forms:
                self.forms.setdefault(form.base, []).append(form)

    def match(self, instruction: Instruction, index: int) -> Matched:
        """The instruction with its form. Raises UnsupportedError where the table has none."""
        code = instruction.opcode
        found = self._found.get(code.text)
        if found is None:
            found = [
                (form, parts)
                for form in self.forms.get(code.base, ())
                if (parts := match_modifiers(form, code.modifiers)) is not None
            ]
            self._found[code.text] = found
        count = len(instruction.operands)
        for form, parts in found:
            if count in form.operands:
                return Matched(instruction, form, parts, index)
        why = f"{code.text} with {count} operands is not modelled" if found else "not modelled"
        raise unsupported(instruction, why)


def membermask(instruction: Instruction) -> Operand | None:
    """The operand that names the lanes of a warp-wide instruction; None where it is no such."""
    code = instruction.opcode
    if code.base in _WITH_MEMBERS and "sync" in code.modifiers:
        return instruction.operands[-1]
    if code.base == "bar" and "warp" in code.modifiers:
        return instruction.operands[-1]
    return None


def is_full(mask: Operand) -> bool:
    """Whether a membermask names all 32 lanes for certain."""
    return isinstance(mask, Immediate) and mask.value & _FULL_MASK == _FULL_MASK


def needs_whole_warp(instruction: Instruction) -> bool:
    """Whether the instruction is to be executed by all lanes of a warp together."""
    code = instruction.opcode
    if "aligned" in code.modifiers or (code.base == "bar" and "warp" not in code.modifiers):
        return True
    mask = membermask(instruction)
    return mask is not None and is_full(mask)


def is_warp_wide(instruction: Instruction) -> bool:
    """Whether the instruction needs some other lanes of its warp."""
    return needs_whole_warp(instruction) or membermask(instruction) is not None


def unsupported(instruction: Instruction, why: str) -> UnsupportedError:
    return UnsupportedError(why, instruction.line, str(instruction))
