"""PTX text around the line that a test is about."""

from __future__ import annotations

from sparsekit.ptx import Function, parse

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def entry(body: str) -> Function:
    """The entry `k` with declared registers %p<3>, %r<9>, %rd<9>, %f<9>; body from line 9 on."""
    text = (
        f"{HEAD}.visible .entry k(.param .u64 out)\n{{\n.reg .pred %p<3>; .reg .b32 %r<9>;\n"
        f".reg .b64 %rd<9>; .reg .f32 %f<9>;\n\n{body}\n}}\n"
    )
    return parse(text).entries[0]
