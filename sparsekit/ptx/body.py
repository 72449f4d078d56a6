"""A function body: scopes, declarations, labels, line information and the instructions.

Instructions are most of a module, so one pattern finds a whole statement and each operand text is
parsed once per scope; everything else goes through the token cursor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from sparsekit.ptx.declarations import VARIABLE_SPACES, parse_registers, parse_variables
from sparsekit.ptx.errors import OperandError, PtxError
from sparsekit.ptx.instruction_text import TRANSFERS, parse_instruction, predicate
from sparsekit.ptx.labels import TABLE_DIRECTIVES, Labels
from sparsekit.ptx.module import (
    Function,
    Instruction,
    Loc,
    Param,
    Pragma,
    RegisterDeclaration,
    Variable,
)
from sparsekit.ptx.operands import Symbol
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
        self._label: str | None = None  # the one that directly precedes
        self._labels = Labels()
        self._registers: list[RegisterDeclaration] = []
        self._variables: list[Variable] = []
        self._pragmas: list[Pragma] = []
        self._instructions: list[Instruction] = []

    def parse(self, declared: Function) -> Function:
        """The function that declared is the header of, with this body."""
        try:
            for param in (*declared.returns, *declared.params):
                self._enter_param(param, declared.line)
            open_scopes = 1
            while open_scopes:
                open_scopes += self._statement()
        except OperandError as error:
            raise PtxError(str(error), self.line, self._rest()) from None
        self._labels.resolve(self._instructions)
        return replace(
            declared,
            defined=True,
            pragmas=declared.pragmas + tuple(self._pragmas),
            registers=tuple(self._registers),
            variables=tuple(self._variables),
            labels=self._labels.places,
            branch_targets=self._labels.branch_targets,
            call_targets=self._labels.call_targets,
            prototypes=self._labels.prototypes,
            instructions=tuple(self._instructions),
        )

    def _enter_param(self, param: Param, line: int) -> None:
        if param.space == "reg":
            register = RegisterDeclaration(param.name, param.type, None, 1, line)
            self._scope.declare_register(register)
        else:
            self._scope.declare_symbol(param.name)

    def _statement(self) -> int:
        """Read one statement; return by how much it changes the number of open scopes."""
        text = self._text
        match = _STATEMENT.match(text, self.position)
        kind = match.lastgroup if match else None
        if match is None or kind is None:
            self._refuse()
        start = match.start(kind)
        self.line += text.count("\n", self.position, start)
        self.position = start  # where an error would lie
        opened = 0
        label = None
        if kind == "instruction":
            self._instruction(match)
        elif kind == "label":
            label = self._labels.declare(match["label"], self._scope, len(self._instructions))
        elif kind == "loc":
            self._locate(match["loc"])
            label = self._label
        elif kind == "directive":
            self._directive(match["directive"])
        else:
            opened = self._brace(match["brace"])
        self._label = label
        self.line += text.count("\n", start, match.end())
        self.position = match.end()
        return opened

    def _instruction(self, match: re.Match[str]) -> None:
        scope = self._scope
        guard = predicate(match["guard"], scope) if match["guard"] else None
        code, operands, reads, writes = parse_instruction(match["opcode"], match["operands"], scope)
        if code.base in TRANSFERS:
            self._labels.refer(len(self._instructions), scope)
        self._instructions.append(
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

    def _brace(self, brace: str) -> int:
        if brace == "{":
            self._scopes_opened += 1
            self._scope = Scope(self._scopes_opened, self._scope, self._symbols)
            return 1
        self._scope = self._scope.parent or self._scope
        return -1

    def _locate(self, text: str) -> None:
        if text not in self._locs:
            if _LOC_INTERMEDIATE.fullmatch(text):
                return
            match = _LOC.fullmatch(text)
            if match is None:
                raise OperandError("a malformed .loc")
            file, line, column, function, *outer = match.groups()
            inlined_at = Loc(int(outer[0]), int(outer[1]), int(outer[2])) if function else None
            self._locs[text] = Loc(int(file), int(line), int(column), inlined_at, function)
        self._loc = self._locs[text]

    def _directive(self, text: str) -> None:
        tokens = Tokens(text, self.line)
        name = tokens.next().text
        if name == ".reg":
            for register in parse_registers(tokens):
                self._registers.append(self._scope.declare_register(register))
        elif name in VARIABLE_SPACES:
            for variable in parse_variables(tokens, name.removeprefix("."), ""):
                flat = self._scope.declare_symbol(variable.name)
                self._variables.append(replace(variable, name=flat))
        elif name == ".pragma":
            self._pragmas.append(Pragma(tokens.string(), len(self._instructions), self.line))
            tokens.expect(";")
        elif name in TABLE_DIRECTIVES:
            self._labels.declare_table(name, self._label, tokens, self._scope)
        else:
            raise OperandError(f"unknown directive {name} in a function")
        tokens.end()

    def _refuse(self) -> NoReturn:
        rest = self._text[self.position :]
        self.line += rest[: len(rest) - len(rest.lstrip())].count("\n")
        if not rest.strip():
            raise PtxError("a function without its closing brace", self.line, "end of text")
        raise PtxError("no PTX statement", self.line, self._rest())

    def _rest(self) -> str:
        """The statement at the cursor, for a message: up to its semicolon, or the line."""
        match = _STATEMENT.match(self._text, self.position)
        if match is not None:
            return match[0]
        return self._text[self.position :].lstrip().partition("\n")[0]
