"""PTX text -> Module. Source: PTX ISA, Syntax, and Directives.

Strict: what is not understood in full raises PtxError with line and text; nothing is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from sparsekit.ptx.body import BodyParser
from sparsekit.ptx.declarations import LINKAGES, VARIABLE_SPACES, parse_variables
from sparsekit.ptx.errors import PtxError
from sparsekit.ptx.header import parse_header
from sparsekit.ptx.module import Function, Module, Pragma, Section, Variable
from sparsekit.ptx.operands import Symbol
from sparsekit.ptx.text import IDENTIFIER, STRING, Tokens, blank_comments

_MODULE_SPACES = VARIABLE_SPACES - {".local", ".param"}
_DEFAULT_ADDRESS_SIZE = 32
_VERSION = re.compile(r"\s*(\d+\.\d+)(?=\s|\Z)")
_SECTION = re.compile(r"\s*(?P<name>\.?[\w$.]+)\s*\{(?P<text>[^{}]*)\}")
_SECTION_VALUE = r"-?[\w$.]++(?:\s*+[-+]\s*+[\w$.]++)*+"
_SECTION_DATA = re.compile(
    rf"(?:\s*+(?:{IDENTIFIER}\s*+:|\.b(?:8|16|32|64)\s++{_SECTION_VALUE}(?:\s*+,\s*+{_SECTION_VALUE})*+"
    rf"|\.asciz?\s+{STRING}))*+\s*+"
)
_SOURCE_SECTION = re.compile(
    rf"""\s*\{{(?P<text>(?:\s*\.code_block\s*\{{
        \s*\.ir_name:\s*{STRING}\s*\.sourceFileName:\s*\d+
        \s*\.source_begin\s*\.source_end\s*\}})*\s*)\}}""",
    re.X,
)


def parse(text: str) -> Module:
    """Parse one PTX module. Raises PtxError, a ValueError, for what it does not understand."""
    return _ModuleParser(blank_comments(text.rstrip("\0"))).parse()


class _ModuleParser:
    def __init__(self, text: str) -> None:
        self._tokens = Tokens(text)
        self._version = self._target = ""
        self._target_options: tuple[str, ...] = ()
        self._address_size = _DEFAULT_ADDRESS_SIZE
        self._entries: dict[str, Function] = {}
        self._functions: dict[str, Function] = {}
        self._globals: dict[str, Variable] = {}
        self._aliases: dict[str, str] = {}
        self._files: dict[int, str] = {}
        self._sections: list[Section] = []
        self._pragmas: list[Pragma] = []
        self._symbols: dict[str, Symbol] = {}
        self._directives: Mapping[str, Callable[[], None]] = {
            ".target": self._read_target,
            ".address_size": self._read_address_size,
            ".file": self._read_file,
            ".section": self._read_section,
            ".nv_intermediate_source_section": self._read_source_section,
            ".alias": self._read_alias,
            ".pragma": self._read_pragma,
        }

    def parse(self) -> Module:
        tokens = self._tokens
        if not tokens.accept(".version"):
            tokens.fail("a module begins with .version")
        self._read_version()
        while (token := tokens.peek()).kind != "end":
            name = tokens.next().text
            if not self._target and name != ".target":
                tokens.fail(".target expected after .version", token)
            if name in self._directives:
                self._directives[name]()
            elif name in LINKAGES:
                self._declare(tokens.next().text, name.removeprefix("."))
            else:
                self._declare(name, "")
        if not self._target:
            tokens.fail("a module names its .target")
        return Module(
            version=self._version,
            target=self._target,
            target_options=self._target_options,
            address_size=self._address_size,
            entries=tuple(self._entries.values()),
            functions=tuple(self._functions.values()),
            globals=tuple(self._globals.values()),
            aliases=self._aliases,
            files=self._files,
            sections=tuple(self._sections),
            pragmas=tuple(self._pragmas),
        )

    def _declare(self, name: str, linkage: str) -> None:
        if name in (".entry", ".func"):
            self._read_function(is_entry=name == ".entry", linkage=linkage)
        elif name in _MODULE_SPACES:
            for variable in parse_variables(self._tokens, name.removeprefix("."), linkage):
                self._enter_variable(variable)
        else:
            self._tokens.fail(f"unknown directive {name}")

    def _enter_variable(self, variable: Variable) -> None:
        before = self._globals.get(variable.name)
        if variable.name in self._symbols and (before is None or before.linkage != "extern"):
            raise PtxError("a second declaration", variable.line, variable.name)
        self._symbols[variable.name] = Symbol(variable.name)
        self._globals[variable.name] = variable

    def _read_function(self, is_entry: bool, linkage: str) -> None:
        tokens = self._tokens
        function = parse_header(tokens, is_entry, linkage)
        self._symbols[function.name] = Symbol(function.name)
        if tokens.accept("{"):
            body = BodyParser(tokens.text, tokens.position, tokens.line, self._symbols)
            function = body.parse(function)
            tokens.position, tokens.line = body.position, body.line
        elif not tokens.accept(";"):
            tokens.fail("a body or a semicolon expected")
        table = self._entries if is_entry else self._functions
        before = table.get(function.name)
        if before is None or not before.defined:
            table[function.name] = function
        elif function.defined:
            raise PtxError("a second definition", function.line, function.name)

    def _read_version(self) -> None:
        tokens = self._tokens
        match = _VERSION.match(tokens.text, tokens.position)
        if match is None:
            tokens.fail("a version number expected")
        self._version = match[1]
        tokens.line += match[0].count("\n")
        tokens.position = match.end()

    def _read_target(self) -> None:
        names = [self._tokens.name("a target")]
        while self._tokens.accept(","):
            names.append(self._tokens.name("a target option"))
        self._target, *options = names
        self._target_options = tuple(options)

    def _read_address_size(self) -> None:
        self._address_size = self._tokens.integer()

    def _read_file(self) -> None:
        tokens = self._tokens
        index = tokens.integer()
        self._files[index] = tokens.string()
        if tokens.accept(","):  # time stamp and size
            tokens.integer()
            tokens.expect(",")
            tokens.integer()

    def _read_section(self) -> None:
        match = self._pass(_SECTION, "a section")
        if _SECTION_DATA.fullmatch(match["text"]) is None:
            line = self._tokens.line - match["text"].count("\n")
            raise PtxError(f"section {match['name']} holds more than data", line, match["text"])
        self._sections.append(Section(match["name"], match["text"].strip(), self._tokens.line))

    def _read_source_section(self) -> None:
        match = self._pass(_SOURCE_SECTION, "an intermediate source section")
        name = ".nv_intermediate_source_section"
        self._sections.append(Section(name, match["text"].strip(), self._tokens.line))

    def _pass(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        tokens = self._tokens
        match = pattern.match(tokens.text, tokens.position)
        if match is None:
            tokens.fail(f"{what} expected")
        tokens.line += match[0].count("\n")
        tokens.position = match.end()
        return match

    def _read_alias(self) -> None:
        tokens = self._tokens
        alias = tokens.name("an alias")
        tokens.expect(",")
        target = tokens.name("a function")
        tokens.expect(";")
        if target not in self._functions:
            tokens.fail(f".alias of {target}, which is no function")
        self._aliases[alias] = target
        self._symbols[alias] = Symbol(alias)

    def _read_pragma(self) -> None:
        self._pragmas.append(Pragma(self._tokens.string(), 0, self._tokens.line))
        self._tokens.expect(";")
