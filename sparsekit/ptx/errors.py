"""What the parser says of PTX text that it does not understand in full."""

from __future__ import annotations

from sparsekit.errors import CompileError

_SHOWN_CHARACTERS = 160


class PtxError(CompileError, ValueError):
    """PTX text that is refused. line is 1-based, text the statement or token at fault."""

    def __init__(self, message: str, line: int, text: str) -> None:
        self.message = message
        self.line = line
        self.text = " ".join(text.split())[:_SHOWN_CHARACTERS]
        super().__init__(f"PTX line {line}: {message}: {self.text}")


class OperandError(ValueError):
    """An operand or opcode that is refused, before its place in the text is known."""
