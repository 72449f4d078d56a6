"""Function bodies: declarations, scopes, labels, line information, and what is refused."""

from __future__ import annotations

import pytest
from ptx_text import entry

from sparsekit.ptx import Loc, PtxError
from sparsekit.ptx.module import RegisterDeclaration
from sparsekit.ptx.operands import Label, Register, Symbol, Vector


def test_register_declarations() -> None:
    found = entry(".reg .f16 a, b<3>;\n.reg .v2 .u32 v;\nmov.b16 b2, a;\nmov.b32 %r1, v.y;")
    assert found.registers[-3:] == (
        RegisterDeclaration("a", "f16", None, 1, 9),
        RegisterDeclaration("b", "f16", 3, 1, 9),
        RegisterDeclaration("v", "u32", None, 2, 10),
    )
    (nested,) = entry("{ .reg .b32 t<2>; }").registers[-1:]
    assert nested == RegisterDeclaration("t", "b32", 2, 1, 9, scope=1)
    assert found.instructions[0].operands == (Register("b2", "f16"), Register("a", "f16"))
    assert found.instructions[1].operands == (Register("%r1", "b32"), Register("v.y", "u32"))


def test_a_vector_register_is_a_vector_of_its_elements() -> None:
    found = entry(".reg .v2 .b32 v; mov.b64 v, %rd1; mov.b32 %r1, v.g;").instructions
    elements = (Register("v.x", "b32"), Register("v.y", "b32"))
    assert found[0].operands[0] == Vector(elements)
    assert found[0].writes == elements
    assert found[1].reads == (elements[1],)


def test_a_name_and_a_family_of_that_name_are_different_registers() -> None:
    found = entry(".reg .b32 a; .reg .f16 a<2>; mov.b32 {a0, a1}, a;").instructions[0]
    assert [(r.name, r.type) for r in found.writes] == [("a0", "f16"), ("a1", "f16")]
    assert found.reads == (Register("a", "b32"),)


def test_nested_scopes_shadow_names() -> None:
    found = entry(
        """{ .reg .b32 t; .reg .pred p;
             mov.b32 t, 1;
             { add.u32 t, t, 1; .reg .b32 t; mov.b32 t, 2; }
             setp.eq.u32 p, t, 2;
             @p mov.b32 %r1, t;
           }
           { .reg .b32 t; mov.b32 t, %r1; }"""
    )
    written = [[r.name for r in i.writes] for i in found.instructions]
    assert written == [["t.1"], ["t.1"], ["t.2"], ["p.1"], ["%r1"], ["t.3"]]
    assert found.instructions[4].predicate == Register("p.1", "pred")


def test_nested_scopes_have_their_own_labels() -> None:
    found = entry(
        """{ L: bra L; }
           { bra M; L: bra L; M: }
           { bra END; }
           L: bra L;
           END: ret;"""
    )
    targets = [i.operands[0] for i in found.instructions if i.opcode.base == "bra"]
    assert targets == [Label(n) for n in ("L.1", "M.2", "L.2", "END", "L")]
    assert found.labels == {"L.1": 0, "L.2": 2, "M.2": 3, "L": 4, "END": 5}


def test_variables_of_a_function() -> None:
    found = entry(
        """.shared .align 1024 .b8 tile[2][512];
           .local .align 8 .b64 depot[4];
           { .shared .b64 bar; mov.b64 %rd1, bar; }
           mov.b64 %rd2, tile;"""
    )
    shapes = [(v.name, v.space, v.size_bytes, v.align_bytes) for v in found.variables]
    assert shapes == [
        ("tile", "shared", 1024, 1024),
        ("depot", "local", 32, 8),
        ("bar.1", "shared", 8, 8),
    ]
    assert found.instructions[0].operands[1] == Symbol("bar.1")


def test_indirect_branch() -> None:
    found = entry("tbl: .branchtargets A, B, A;\n@%p1 brx.idx.uni %r1, tbl;\nA: ret;\nB: trap;")
    assert found.branch_targets == {"tbl": ("A", "B", "A")}
    assert found.labels == {"A": 1, "B": 2}
    assert found.instructions[0].operands == (Register("%r1", "b32"), Label("tbl"))


def test_line_information() -> None:
    found = entry(
        """.loc 1 41 10
           mov.b32 %r1, 0;
           .loc 2 7 3, function_name $L__info_string0, inlined_at 1 42 5
           .loc_intermediate 3 1 1
           mov.b32 %r1, 1; mov.b32 %r1, 2;"""
    )
    inlined = Loc(2, 7, 3, Loc(1, 42, 5), "$L__info_string0")
    assert [i.loc for i in found.instructions] == [Loc(1, 41, 10), inlined, inlined]
    assert [i.line for i in found.instructions] == [10, 13, 13]


def test_lines_are_counted_through_comments_and_long_statements() -> None:
    found = entry("/* two\nlines */ mov.b32 %r1,\n\n %r2; // end ;\n\nmov.b32 %r1, 3;")
    assert [i.line for i in found.instructions] == [10, 14]


def test_pragmas_keep_their_place() -> None:
    found = entry('mov.b32 %r1, 0;\nL: .pragma "used_bytes_mask 0xff";\nbra L;')
    assert [(p.text, p.instruction, p.line) for p in found.pragmas] == [
        ("used_bytes_mask 0xff", 1, 10)
    ]


REFUSED = [
    ("add.u32 %r1, %r2, %r9;", "undeclared register %r9", 9),
    ("mov.b32 %r1, x;", "undeclared name x", 9),
    ("mov.b32 %r01, 1;", "undeclared register %r01", 9),
    ("\nbra MISSING;", "no label MISSING in this function", 10),
    ("{ L: ret; }\nbra L;", "no label L in this function", 10),
    ("bra out;", "no label out in this function", 9),
    ("t: .branchtargets L;\nbrx.idx %r1, t;", "no label L in this function", 9),
    ("L: brx.idx %r1, L;", "L is no label of the kind needed", 9),
    (".branchtargets L;", ".branchtargets without a label", 9),
    ("bra;", "bra takes one label", 9),
    ("brx.idx %r1;", "brx.idx takes an index and a table", 9),
    ("call;", "a call without a target", 9),
    ("call (%r1), 5;", "a call without a target", 9),
    ("call (5), out;", "a call cannot return to 5", 9),
    ("call out, (), L;", "no label L in this function", 9),
    ("L: call out, (), L;", "L is no label of the kind needed", 9),
    ("t: .callprototype x (.param .b32 _);", "_ expected", 9),
    ("L: L: ret;", "label L stands twice in one scope", 9),
    (".frob 3;", "unknown directive .frob in a function", 9),
    (".reg .b33 x;", "unknown register type .b33", 9),
    (".reg .b32 x, x;", "x is declared twice in one scope", 9),
    (".reg .b32 x<2>; .reg .b32 x1;", "x1 is declared twice in one scope", 9),
    (".reg .b32 x<2>;\n.reg .f32 x<3>;", "x<n> is declared twice in one scope", 10),
    (".reg .b32 x y;", ", expected", 9),
    (".shared .b8 x[4], x;", "x is declared twice in one scope", 9),
    (".shared .b7 x;", "unknown type .b7", 9),
    ('.pragma "nounroll"', "no PTX statement", 9),
    ("@%r1 ret;", "the guard %r1 is no predicate", 9),
    ("@%p9 ret;", "undeclared register %p9", 9),
    ("mov.b32 %r1, %r2", "no PTX statement", 9),
    ("mov.b32 %r1, %r2\nmov.b32 %r1, %r2;", "malformed operand", 9),
    ("mov.b32 %r1,, %r2;", "an empty operand", 9),
    ("mov.b32 %r1, ;", "an empty operand", 9),
    ("mov.b32 %r1, -%r2;", "malformed operand", 9),
    ("mov.b32 %r1, 0xZZ;", "malformed operand", 9),
    ("mov.b32 %r1, 08;", "malformed operand", 9),
    ("mov.b32 %r1, 5 5;", "malformed operand", 9),
    ("mov.b32 %r1, 1/0;", "malformed operand", 9),
    ("mov.b32 %r1, %r2 + 4;", "an offset to %r2, which is no variable", 9),
    ("mov.b32 %r1, %r2.x;", "%r2 has no part x", 9),
    ("mov.b32 %r1, %tid.q;", "%tid has no part q", 9),
    ("selp.b32 %r1, 1, 0, !%r2;", "! before %r2, which is no predicate", 9),
    ("ld.global.b32 %r1, [%rd1;", "malformed operands", 9),
    ("ld.global.b32 %r1, %rd1];", "malformed operands", 9),
    ("ld.global.b32 %r1, [%rd1-8];", "malformed address or offset %rd1-8", 9),
    ("ld.global.b32 %r1, [%rd1+%r2];", "malformed address or offset %r2", 9),
    ("ld.global.b32 %r1, [%tid.x];", "%tid.x is no address", 9),
    ("ld.global.b32 %r1, [];", "malformed address or offset", 9),
    ("mov.b64 %rd1, {%r1, };", "an empty operand", 9),
    ("ADD.u32 %r1, %r1, 1;", "no PTX statement", 9),
    ("ret;;", "no PTX statement", 9),
    (".loc 1 2\nret;", "a malformed .loc", 9),
    (".global .u32 x = {1, 2;", "no PTX statement", 9),
]


@pytest.mark.parametrize(("body", "message", "line"), REFUSED)
def test_refused_bodies(body: str, message: str, line: int) -> None:
    with pytest.raises(PtxError, match="PTX line") as caught:
        entry(body)
    assert message in str(caught.value)
    assert caught.value.line == line
    assert isinstance(caught.value, ValueError)


def test_the_message_holds_line_message_and_text() -> None:
    with pytest.raises(PtxError) as caught:
        entry("ret;\n\nadd.u32  %r1,\n  %r2, %q;")
    assert str(caught.value) == "PTX line 11: undeclared register %q: add.u32 %r1, %r2, %q;"
