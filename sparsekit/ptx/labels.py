"""Labels of a function: places, and the tables that brx.idx and indirect calls name.

An instruction may name a label that stands further down, so references are checked and given
their flat names when the body has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sparsekit.ptx.errors import OperandError, PtxError
from sparsekit.ptx.header import parse_prototype
from sparsekit.ptx.module import Instruction, Prototype
from sparsekit.ptx.operands import Label, Operand
from sparsekit.ptx.scope import Scope
from sparsekit.ptx.text import Tokens

TABLE_DIRECTIVES = frozenset({".branchtargets", ".calltargets", ".callprototype"})


@dataclass(frozen=True, slots=True)
class _Reference:
    """Where a label is named: for messages, and for the scope to look it up in."""

    scope: Scope
    line: int
    text: str


@dataclass(slots=True)
class Labels:
    """What a body has brought so far; all names are flat. places: label -> instruction index."""

    places: dict[str, int] = field(default_factory=dict)
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    call_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    prototypes: dict[str, Prototype] = field(default_factory=dict)
    _tables: dict[str, _Reference] = field(default_factory=dict)
    _transfers: dict[int, Scope] = field(default_factory=dict)

    def declare(self, name: str, scope: Scope, index: int) -> str:
        """Enter the label of the instruction that follows and return its flat name."""
        flat = scope.declare_label(name)
        self.places[flat] = index
        return flat

    def declare_table(self, kind: str, label: str | None, tokens: Tokens, scope: Scope) -> None:
        """Read the table behind a label, which thereby is no place."""
        if label is None or self.places.pop(label, None) is None:
            tokens.fail(f"{kind} without a label")
        if kind == ".callprototype":
            self.prototypes[label] = parse_prototype(tokens)
            return
        line = tokens.line
        targets = [tokens.name("a target")]
        while tokens.accept(","):
            targets.append(tokens.name("a target"))
        tokens.expect(";")
        if kind == ".calltargets":
            self.call_targets[label] = tuple(str(scope.resolve(target)) for target in targets)
            return
        self.branch_targets[label] = tuple(targets)
        self._tables[label] = _Reference(scope, line, tokens.text)

    def refer(self, index: int, scope: Scope) -> None:
        """Note an instruction with a label operand."""
        self._transfers[index] = scope

    def resolve(self, instructions: list[Instruction]) -> None:
        """Check all references and give them flat names. Raises PtxError for one without aim."""
        for table, reference in self._tables.items():
            self.branch_targets[table] = tuple(
                _flat(name, reference, self.places) for name in self.branch_targets[table]
            )
        for index, scope in self._transfers.items():
            user = instructions[index]
            reference = _Reference(scope, user.line, str(user))
            operands = tuple(self._resolved(operand, user, reference) for operand in user.operands)
            instructions[index] = replace(user, operands=operands)

    def _resolved(self, operand: Operand, user: Instruction, reference: _Reference) -> Operand:
        if not isinstance(operand, Label):
            return operand
        match user.opcode.base:
            case "bra":
                return Label(_flat(operand.name, reference, self.places))
            case "brx":
                return Label(_flat(operand.name, reference, self.branch_targets))
        return Label(_flat(operand.name, reference, self.prototypes, self.call_targets))


def _flat(name: str, reference: _Reference, *kinds: Mapping[str, object]) -> str:
    """The flat name of a label that must be of one of these kinds."""
    try:
        flat = reference.scope.label(name)
    except OperandError as error:
        raise PtxError(str(error), reference.line, reference.text) from None
    if not any(flat in kind for kind in kinds):
        raise PtxError(f"{name} is no label of the kind needed", reference.line, reference.text)
    return flat
