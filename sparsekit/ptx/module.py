"""A parsed PTX module as data. Source: PTX ISA, Directives, and State Spaces, Types, Variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from sparsekit.ptx.opcodes import Opcode
from sparsekit.ptx.operands import Float, Immediate, Operand, Register

TYPE_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("b8", "u8", "s8"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 8),
    "b128": 16,
    # opaque handles: 64-bit objects to the hardware
    **dict.fromkeys(("texref", "samplerref", "surfref"), 8),
}
REGISTER_TYPES = frozenset(TYPE_BYTES) - {"texref", "samplerref", "surfref"} | {"pred"}


@dataclass(frozen=True, slots=True)
class Loc:
    """A place in the source, from `.loc`. file indexes Module.files.

    inlined_at is the place of the call that was inlined, None where there was none; function is
    the label of the inlined function's name in the debug strings.
    """

    file: int
    line: int
    column: int
    inlined_at: Loc | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. It runs where predicate, when there is one, differs from negated.

    reads and writes list the registers in operand order, the predicate first among the reads. An
    accumulator that the instruction adds to stands in both. line is 1-based, in the PTX text.
    """

    opcode: Opcode
    operands: tuple[Operand, ...]
    predicate: Register | None
    negated: bool
    line: int
    loc: Loc | None
    reads: tuple[Register, ...]
    writes: tuple[Register, ...]

    def __str__(self) -> str:
        guard = f"@{'!' * self.negated}{self.predicate} " if self.predicate else ""
        operands = ", ".join(map(str, self.operands))
        return f"{guard}{self.opcode.text} {operands}".rstrip() + ";"


@dataclass(frozen=True, slots=True)
class RegisterDeclaration:
    """`.reg`. count is n of `name<n>`, the registers name0 ... name(n-1), else None.

    scope is the number of the nested scope, 0 for the outermost. From 1 on it ends the names of
    the registers: with name "t", count 2 and scope 3 they are t0.3 and t1.3.
    """

    name: str
    type: str
    count: int | None
    vector: int  # elements of a vector register: 1, 2 or 4
    line: int
    scope: int = 0


@dataclass(frozen=True, slots=True)
class InitialAddress:
    """An initial value that the loader computes: a symbol's address plus a constant.

    generic: as a generic address, not one in the symbol's own state space. mask: the bits kept,
    shifted down, as in `0xFF00(symbol)`; None keeps all.
    """

    name: str
    offset_bytes: int = 0
    generic: bool = False
    mask: int | None = None


Initial: TypeAlias = "Immediate | Float | InitialAddress | tuple[Initial, ...]"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in memory, of the module or of one function.

    space: "global", "const", "shared", "local" or "param". size_bytes covers all elements; it is
    0 for an array without a bound (dynamic shared memory). linkage: "", "extern", "visible",
    "weak" or "common". initial is None where the text gives no value.
    """

    name: str
    space: str
    type: str
    size_bytes: int
    align_bytes: int
    vector: int
    linkage: str
    attributes: tuple[str, ...]
    initial: Initial | None
    line: int


@dataclass(frozen=True, slots=True)
class Param:
    """A formal parameter. space is "param", or "reg" in old functions.

    pointer_space: the state space of a `.ptr` parameter, "generic" where none is named, None for
    one that is no pointer; pointer_align_bytes: what is promised of the memory pointed to.
    """

    name: str
    space: str
    type: str
    size_bytes: int
    align_bytes: int
    pointer_space: str | None = None
    pointer_align_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Pragma:
    """`.pragma` and the index of the instruction that it stands before (0 in a header)."""

    text: str
    instruction: int
    line: int


@dataclass(frozen=True, slots=True)
class Prototype:
    """The type of an indirect call's target (`.callprototype`)."""

    returns: tuple[Param, ...]
    params: tuple[Param, ...]
    directives: Mapping[str, tuple[int | str, ...]]


@dataclass(frozen=True, slots=True)
class Function:
    """An `.entry` or `.func`. A declaration has defined False and no body.

    directives: those of the header with their values, {"reqntid": (128,), "noreturn": ()}.
    labels: name -> index of the instruction that follows (len(instructions) at the very end).
    branch_targets, call_targets, prototypes: the tables that brx.idx and indirect calls name.
    Names of nested scopes bear the scope's number, "L.3".
    """

    name: str
    is_entry: bool
    linkage: str
    defined: bool
    returns: tuple[Param, ...]
    params: tuple[Param, ...]
    directives: Mapping[str, tuple[int | str, ...]]
    line: int
    pragmas: tuple[Pragma, ...] = ()
    registers: tuple[RegisterDeclaration, ...] = ()
    variables: tuple[Variable, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    branch_targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    call_targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prototypes: Mapping[str, Prototype] = field(default_factory=dict)
    instructions: tuple[Instruction, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A debug section, kept as checked text without comments."""

    name: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Module:
    """One PTX file. version "9.0"; target "sm_100a"; target_options such as "debug".

    entries and functions hold one of each name: the definition where there is one, else the
    declaration. files: `.file` index -> path. aliases: `.alias` name -> function.
    """

    version: str
    target: str
    target_options: tuple[str, ...]
    address_size: int
    entries: tuple[Function, ...]
    functions: tuple[Function, ...]
    globals: tuple[Variable, ...]
    aliases: Mapping[str, str]
    files: Mapping[int, str]
    sections: tuple[Section, ...]
    pragmas: tuple[Pragma, ...]

    @property
    def noreturn(self) -> frozenset[str]:
        """The functions that a call does not come back from."""
        return frozenset(f.name for f in self.functions if "noreturn" in f.directives)

    def where(self, loc: Loc | None) -> str:
        """A source place for a message, "kernel.cu:41:10"; empty for None."""
        return f"{self.files.get(loc.file, loc.file)}:{loc.line}:{loc.column}" if loc else ""
