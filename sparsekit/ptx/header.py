"""Headers of `.entry`, `.func` and `.callprototype`. Source: PTX ISA, Directives."""

from __future__ import annotations

from collections.abc import Mapping

from sparsekit.ptx.declarations import parse_attributes, parse_params
from sparsekit.ptx.module import Function, Pragma, Prototype
from sparsekit.ptx.text import Tokens

# How many integers a directive takes at most.
_DIRECTIVES: Mapping[str, int] = {
    **dict.fromkeys((".maxntid", ".reqntid", ".reqnctapercluster"), 3),
    **dict.fromkeys((".minnctapersm", ".maxnctapersm", ".maxnreg", ".maxclusterrank"), 1),
    **dict.fromkeys((".abi_preserve", ".abi_preserve_control", ".minperctamemory"), 1),
    **dict.fromkeys((".noreturn", ".explicitcluster", ".blocksareclusters"), 0),
}


def parse_header(tokens: Tokens, is_entry: bool, linkage: str) -> Function:
    """The header after `.entry` or `.func`, up to its opening brace or semicolon."""
    line = tokens.line
    attributes = parse_attributes(tokens) if tokens.accept(".attribute") else []
    returns = parse_params(tokens) if tokens.peek().text == "(" else ()
    name = tokens.name("a function name")
    params = parse_params(tokens) if tokens.peek().text == "(" else ()
    directives, pragmas = _directives(tokens)
    if attributes:
        directives["attribute"] = tuple(attributes)
    return Function(
        name=name,
        is_entry=is_entry,
        linkage=linkage,
        defined=False,
        returns=returns,
        params=params,
        directives=directives,
        line=line,
        pragmas=tuple(pragmas),
    )


def parse_prototype(tokens: Tokens) -> Prototype:
    """`(.param .b32 _) _ (.param .b64 _) .noreturn;` after `.callprototype`."""
    returns = parse_params(tokens) if tokens.peek().text == "(" else ()
    tokens.expect("_")
    params = parse_params(tokens) if tokens.peek().text == "(" else ()
    directives, _ = _directives(tokens)
    tokens.expect(";")
    return Prototype(returns, params, directives)


def _directives(tokens: Tokens) -> tuple[dict[str, tuple[int | str, ...]], list[Pragma]]:
    directives: dict[str, tuple[int | str, ...]] = {}
    pragmas = []
    while tokens.peek().kind == "word":
        name = tokens.next().text
        if name == ".pragma":
            pragmas.append(Pragma(tokens.string(), 0, tokens.line))
            tokens.expect(";")
        elif name == ".language":
            directives["language"] = _languages(tokens)
        elif name in _DIRECTIVES:
            directives[name.removeprefix(".")] = _integers(tokens, name)
        else:
            tokens.fail(f"unknown directive {name} in a header")
    return directives, pragmas


def _integers(tokens: Tokens, name: str) -> tuple[int, ...]:
    limit = _DIRECTIVES[name]
    if limit == 0:
        return ()
    values = [tokens.integer()]
    while tokens.accept(","):
        values.append(tokens.integer())
    if len(values) > limit:
        tokens.fail(f"{name} takes at most {limit} values")
    return tuple(values)


def _languages(tokens: Tokens) -> tuple[int | str, ...]:
    values: list[int | str] = []
    while True:
        values.append(tokens.string() if tokens.peek().kind == "string" else tokens.integer())
        if not tokens.accept(","):
            return tuple(values)
