"""PTX text as tokens, for all but the instructions: comments, words, numbers, marks, lines."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from sparsekit.ptx.errors import PtxError

STRING = r'"(?:\\.|[^"\\\n])*"'
IDENTIFIER = r"(?:[A-Za-z][\w$]*|[_$%][\w$]+)"

# Debug information can carry source text of another language; it is blanked like a comment.
_COMMENT = re.compile(
    rf"""{STRING} | //[^\n]* | /\*.*?(?:\*/|(?P<open>\Z))
      | (?<=\.source_begin)\b.*?(?=\.source_end\b)""",
    re.S | re.X,
)
_TOKEN = re.compile(
    rf"""
    (?P<space> \s+)
  | (?P<number> 0[fF][0-9a-fA-F]{{8}}\b | 0[dD][0-9a-fA-F]{{16}}\b
      | 0[xX][0-9a-fA-F]+U?\b | 0[bB][01]+U?\b
      | \d+\.\d*(?:[eE][-+]?\d+)? | \d+[eE][-+]?\d+ | \d+U?\b )
  | (?P<word> \.?{IDENTIFIER}(?:::\w+)* | _ )
  | (?P<string> {STRING})
  | (?P<mark> << | >> | [-+*/%&|^~!<>=:;,.@(){{}}\[\]] )
    """,
    re.X,
)


class Token(NamedTuple):
    """kind: "word" (directives with their dot), "number", "string", "mark", or "end"."""

    kind: str
    text: str
    line: int


def blank_comments(text: str) -> str:
    """The text with every comment replaced by white space of as many lines."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        if found[0] == '"':
            return found
        if match["open"] is not None:
            line = text.count("\n", 0, match.start()) + 1
            raise PtxError("a comment without an end", line, found)
        return "\n" * found.count("\n") or " "

    return _COMMENT.sub(blank, text)


class Tokens:
    """A cursor over comment-free text. line is that of text[position]."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text = text
        self.line = line
        self.position = 0
        self._seen: tuple[int, Token, int, int] | None = None  # position, token, what follows

    def peek(self) -> Token:
        """The next token, left in place."""
        position, line = self.position, self.line
        token = self.next()
        self._seen = (position, token, self.position, self.line)
        self.position, self.line = position, line
        return token

    def next(self) -> Token:
        """The next token; kind "end" where there is none."""
        if self._seen is not None and self._seen[0] == self.position:
            _, token, self.position, self.line = self._seen
            return token
        while self.position < len(self.text):
            match = _TOKEN.match(self.text, self.position)
            if match is None:
                self.fail("no PTX token")
            self.position = match.end()
            if match.lastgroup != "space":
                return Token(match.lastgroup or "", match[0], self.line)
            self.line += match[0].count("\n")
        return Token("end", "", self.line)

    def accept(self, text: str) -> bool:
        """Pass the next token if it is this one."""
        if self.peek().text != text:
            return False
        self.next()
        return True

    def expect(self, text: str) -> None:
        """Pass this token; any other raises PtxError."""
        token = self.next()
        if token.text != text:
            self.fail(f"{text} expected", token)

    def take(self, kind: str, what: str) -> str:
        """Pass a token of one kind and return its text; any other raises PtxError."""
        token = self.next()
        if token.kind != kind:
            self.fail(f"{what} expected", token)
        return token.text

    def name(self, what: str) -> str:
        """Pass an identifier, not a directive."""
        text = self.take("word", what)
        if text.startswith("."):
            self.fail(f"{what} expected, not {text}")
        return text

    def string(self) -> str:
        """Pass a string and return what stands between the quotes, escapes as written."""
        return self.take("string", "a string")[1:-1]

    def integer(self) -> int:
        """Pass an unsigned decimal integer."""
        text = self.take("number", "an integer")
        if not text.isdecimal():
            self.fail(f"an integer expected, not {text}")
        return int(text)

    def end(self) -> None:
        """Raise PtxError unless all is read."""
        token = self.next()
        if token.kind != "end":
            self.fail("unexpected text", token)

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        """Raise PtxError for a token, or for the text at the cursor."""
        if token is not None:
            raise PtxError(message, token.line, token.text or "end of text")
        rest = self.text[self.position :].lstrip().partition("\n")[0]
        raise PtxError(message, self.line, rest or "end of text")
