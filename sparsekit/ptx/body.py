"""A function body: scopes, declarations, labels, line information and the instructions.

Instructions are most of a module, so one pattern finds a whole statement and each operand text is
parsed once per scope; everything else goes through the token cursor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from sparsekit.ptx.declarations import VARIABLE_SPACES, parse_registers, parse_variables
from sparsekit.ptx.errors import OperandError, PtxError
from sparsekit.ptx.header import parse_prototype
from sparsekit.ptx.instruction_text import TRANSFERS, parse_instruction, predicate
from sparsekit.ptx.module import (
    Function,
    Instruction,
    Loc,
    Pragma,
    Prototype,
    RegisterDeclaration,
    Variable,
)
from sparsekit.ptx.operands import Label, Operand, Symbol
from sparsekit.ptx.scope import Scope
from sparsekit.ptx.text import IDENTIFIER, STRING, Tokens

_BRACED = r"\{(?:[^;{}]++|\{[^;{}]*+\})*+\}"  # an initial value, arrays of arrays included
_STATEMENT = re.compile(
    rf"""\s*(?:
      (?P<brace> [{{}}])
    | (?P<label> {IDENTIFIER})\s*:(?!:)
    | (?P<loc> \.loc(?:_intermediate)?\s[^\n]*)
    | (?P<directive> \.[^;{{}}"]*+(?:(?:{STRING}|{_BRACED})[^;{{}}"]*+)*+;)
    | (?P<instruction>
        (?:@\s*(?P<negation>!?)\s*(?P<guard>[\w$%]+)\s+)?
        (?P<opcode>[a-z][\w.:]*)
        (?P<operands>[^;{{}}"@]*+(?:\{{[^;{{}}]*+\}}[^;{{}}"@]*+)*+);
      )
    )""",
    re.X,
)
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)"
    r"(?:\s*,\s*function_name\s+([\w$.]+)(?:\s*\+\s*\d+)?\s*,"
    r"\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?\s*"
)
_LOC_INTERMEDIATE = re.compile(r"\.loc_intermediate\s+\d+\s+\d+\s+\d+\s*")


@dataclass(slots=True)
class _Draft:
    """What a body has brought so far."""

    registers: list[RegisterDeclaration] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    pragmas: list[Pragma] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    call_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    prototypes: dict[str, Prototype] = field(default_factory=dict)
    # label operands (and branch tables) may name what comes later
    unresolved: list[tuple[int, Scope]] = field(default_factory=list)
    tables: list[tuple[str, Scope, int]] = field(default_factory=list)


class BodyParser:
    """Reads one body from just behind its opening brace; afterwards position is behind its end."""

    def __init__(self, text: str, position: int, line: int, symbols: Mapping[str, Symbol]) -> None:
        self.position = position
        self.line = line
        self._text = text
        self._symbols = symbols
        self._scope = Scope(0, None, symbols)
        self._scopes_opened = 0
        self._loc: Loc | None = None
        self._locs: dict[str, Loc] = {}
        self._label: str | None = None  # a label that directly precedes
        self._draft = _Draft()

    def parse(self, declared: Function) -> Function:
        """The function that declared is the header of, with this body."""
        for param in (*declared.returns, *declared.params):
            self._enter_param(param.name, param.space, param.type, declared.line)
        open_scopes = 1
        while open_scopes:
            match = _STATEMENT.match(self._text, self.position)
            kind = match.lastgroup if match else None
            if match is None or kind is None:
                self._refuse_text()
            start = match.start(kind)
            self.line += self._text.count("\n", self.position, start)
            if kind == "instruction":
                self._instruction(match)
                self._label = None
            elif kind == "label":
                self._label = self._declare_label(match["label"])
            elif kind == "loc":
                self._locate(match["loc"])
            elif kind == "directive":
                self._directive(match["directive"])
                self._label = None
            else:
                open_scopes += self._brace(match["brace"])
            self.line += self._text.count("\n", start, match.end())
            self.position = match.end()
        self._resolve()
        draft = self._draft
        return replace(
            declared,
            defined=True,
            pragmas=declared.pragmas + tuple(draft.pragmas),
            registers=tuple(draft.registers),
            variables=tuple(draft.variables),
            labels=draft.labels,
            branch_targets=draft.branch_targets,
            call_targets=draft.call_targets,
            prototypes=draft.prototypes,
            instructions=tuple(draft.instructions),
        )

    def _enter_param(self, name: str, space: str, type_name: str, line: int) -> None:
        if space == "reg":
            self._scope.declare_register(RegisterDeclaration(name, type_name, None, 1, line))
        else:
            self._scope.declare_symbol(name)

    def _brace(self, brace: str) -> int:
        if brace == "{":
            self._scopes_opened += 1
            self._scope = Scope(self._scopes_opened, self._scope, self._symbols)
            return 1
        self._scope = self._scope.parent or self._scope
        return -1

    def _declare_label(self, name: str) -> str:
        try:
            flat = self._scope.declare_label(name)
        except OperandError as error:
            raise PtxError(str(error), self.line, name) from None
        self._draft.labels[flat] = len(self._draft.instructions)
        return flat

    def _locate(self, text: str) -> None:
        loc = self._locs.get(text)
        if loc is None:
            if _LOC_INTERMEDIATE.fullmatch(text):
                return
            match = _LOC.fullmatch(text)
            if match is None:
                raise PtxError("a malformed .loc", self.line, text)
            file, line, column, function, *outer = match.groups()
            at = Loc(int(outer[0]), int(outer[1]), int(outer[2])) if outer[0] else None
            loc = self._locs[text] = Loc(int(file), int(line), int(column), at, function)
        self._loc = loc

    def _directive(self, text: str) -> None:
        tokens = Tokens(text, self.line)
        name = tokens.next().text
        draft = self._draft
        try:
            if name == ".reg":
                for declared in parse_registers(tokens):
                    draft.registers.append(self._scope.declare_register(declared))
            elif name in VARIABLE_SPACES:
                for variable in parse_variables(tokens, name.removeprefix("."), ""):
                    flat = self._scope.declare_symbol(variable.name)
                    draft.variables.append(replace(variable, name=flat))
            elif name == ".pragma":
                pragma = Pragma(tokens.string(), len(draft.instructions), self.line)
                draft.pragmas.append(pragma)
                tokens.expect(";")
            elif name in (".branchtargets", ".calltargets", ".callprototype"):
                self._table(name, tokens)
            else:
                raise PtxError(f"unknown directive {name} in a function", self.line, text)
            tokens.end()
        except OperandError as error:
            raise PtxError(str(error), self.line, text) from None

    def _table(self, kind: str, tokens: Tokens) -> None:
        """A labelled list of branch or call targets, or a prototype: its label is no place."""
        name = self._label
        if name is None or self._draft.labels.pop(name, None) is None:
            tokens.fail(f"{kind} without a label")
        if kind == ".callprototype":
            self._draft.prototypes[name] = parse_prototype(tokens)
            return
        targets = [tokens.name("a target")]
        while tokens.accept(","):
            targets.append(tokens.name("a target"))
        tokens.expect(";")
        if kind == ".branchtargets":
            self._draft.branch_targets[name] = tuple(targets)
            self._draft.tables.append((name, self._scope, self.line))
            return
        self._draft.call_targets[name] = tuple(str(self._scope.resolve(t)) for t in targets)

    def _instruction(self, match: re.Match[str]) -> None:
        scope = self._scope
        try:
            guard = predicate(match["guard"], scope) if match["guard"] else None
            code, operands, reads, writes = parse_instruction(
                match["opcode"], match["operands"], scope
            )
        except OperandError as error:
            raise PtxError(str(error), self.line, match["instruction"]) from None
        if code.base in TRANSFERS:
            self._draft.unresolved.append((len(self._draft.instructions), scope))
        self._draft.instructions.append(
            Instruction(
                opcode=code,
                operands=operands,
                predicate=guard,
                negated=match["negation"] == "!",
                line=self.line,
                loc=self._loc,
                reads=(guard, *reads) if guard else reads,
                writes=writes,
            )
        )

    def _resolve(self) -> None:
        """Give the labels that instructions and branch tables name their flat names."""
        draft = self._draft
        for name, scope, line in draft.tables:
            targets = draft.branch_targets[name]
            draft.branch_targets[name] = tuple(self._place(t, scope, line, name) for t in targets)
        for index, scope in draft.unresolved:
            instruction = draft.instructions[index]
            draft.instructions[index] = replace(
                instruction,
                operands=tuple(
                    self._resolve_operand(operand, instruction, scope)
                    for operand in instruction.operands
                ),
            )

    def _resolve_operand(self, operand: Operand, user: Instruction, scope: Scope) -> Operand:
        if not isinstance(operand, Label):
            return operand
        if user.opcode.base == "bra":
            return Label(self._place(operand.name, scope, user.line, str(user)))
        if user.opcode.base == "brx":
            tables: tuple[Mapping[str, object], ...] = (self._draft.branch_targets,)
        else:
            tables = (self._draft.prototypes, self._draft.call_targets)
        return Label(self._flat(operand.name, scope, tables, user.line, str(user)))

    def _place(self, name: str, scope: Scope, line: int, text: str) -> str:
        return self._flat(name, scope, (self._draft.labels,), line, text)

    def _flat(
        self,
        name: str,
        scope: Scope,
        tables: tuple[Mapping[str, object], ...],
        line: int,
        text: str,
    ) -> str:
        """The flat name of a label that one of the tables must hold."""
        try:
            flat = scope.label(name)
        except OperandError as error:
            raise PtxError(str(error), line, text) from None
        if not any(flat in table for table in tables):
            raise PtxError(f"{name} is no label of the kind wanted here", line, text)
        return flat

    def _refuse_text(self) -> NoReturn:
        rest = self._text[self.position :]
        line = self.line + rest[: len(rest) - len(rest.lstrip())].count("\n")
        if not rest.strip():
            raise PtxError("a function without its closing brace", line, "end of text")
        raise PtxError("no PTX statement", line, rest.lstrip().partition("\n")[0])
