"""Rule use-before-definition: what is refused, what is warned of, what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsekit.ptx import USE_BEFORE_DEFINITION, Finding, Loc, lint, parse

FIXTURES = Path(__file__).parent / "fixtures"
HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def findings(body: str) -> list[tuple[str, str, int]]:
    """(severity, register, line) for an entry `k`; the body's first line is line 1."""
    text = (
        f"{HEAD}.entry k(.param .u64 out) {{\n.reg .pred %p<9>; .reg .b32 %r<9>;"
        f" .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .b16 %h<4>;\n{body}\n}}"
    )
    above = 5
    found = [f for f in lint(parse(text)) if f.rule == USE_BEFORE_DEFINITION]
    return [(f.severity, f.register, f.line - above) for f in found]


def test_straight_line() -> None:
    assert findings("mov.b32 %r1, 0; add.u32 %r2, %r1, 1; st.shared.b32 [%r1], %r2; ret;") == []
    assert findings("add.u32 %r2, %r1, 1;\nmov.b32 %r1, 0; ret;") == [("error", "%r1", 1)]
    assert findings("add.u32 %r1, %r1, 1; ret;") == [("error", "%r1", 1)]


def test_a_register_that_nothing_writes() -> None:
    assert findings("mov.b32 %r1, %r2; ret;") == [("error", "%r2", 1)]
    assert findings("@%p1 ret; ret;") == [("error", "%p1", 1)]
    assert findings("st.global.b32 [%rd1], 0; ret;") == [("error", "%rd1", 1)]


def test_finding() -> None:
    text = f"""{HEAD}.file 1 "kernel.cu"
.entry k() {{
.reg .b64 %rd<3>;
.loc 1 41 10
shl.b64 %rd1, %rd2, 1;
mov.b64 %rd2, 0;
ret;
}}"""
    assert lint(parse(text)) == (
        Finding(
            severity="error",
            rule=USE_BEFORE_DEFINITION,
            entry="k",
            register="%rd2",
            line=8,
            loc=Loc(1, 41, 10),
            message="`shl.b64 %rd1, %rd2, 1;` reads %rd2 before its definition on every path;"
            " first written in line 9",
        ),
    )


def test_one_finding_per_register_at_its_first_read() -> None:
    body = "mov.b32 %r2, %r1;\nmov.b32 %r3, %r1;\nmov.b32 %r4, %r5;\nret;"
    assert findings(body) == [("error", "%r1", 1), ("error", "%r5", 3)]


def test_loop_that_reads_before_it_defines() -> None:
    body = """mov.b32 %r3, 0;
LOOP:
    shl.b64 %rd2, %rd1, 1;
    cvt.u64.u32 %rd1, %r3;
    setp.lt.u32 %p1, %r3, 9;
    @%p1 bra LOOP;
    ret;"""
    assert findings(body) == [("error", "%rd1", 3)]


def test_loop_defined_ahead() -> None:
    body = """mov.b64 %rd1, 0; mov.b32 %r3, 0;
LOOP:
    shl.b64 %rd2, %rd1, 1;
    cvt.u64.u32 %rd1, %r3;
    setp.lt.u32 %p1, %r3, 9;
    @%p1 bra LOOP;
    ret;"""
    assert findings(body) == []


def test_inner_loop_reads_what_the_outer_loop_defines() -> None:
    body = """setp.eq.b32 %p1, 0, 0;
OUTER:
INNER:
    mov.b32 %r2, %r1;
    @%p1 bra INNER;
    mov.b32 %r1, 0;
    @%p1 bra OUTER;
    ret;"""
    assert findings(body) == [("error", "%r1", 4)]


def test_outer_loop_reads_what_an_inner_loop_defines() -> None:
    body = """setp.eq.b32 %p1, 0, 0;
OUTER:
    mov.b32 %r2, %r1;
INNER:
    mov.b32 %r1, 0;
    @%p1 bra INNER;
    @%p1 bra OUTER;
    ret;"""
    assert findings(body) == [("error", "%r1", 3)]
    skipped = body.replace("    mov.b32 %r2, %r1;", "@%p1 bra INNER; mov.b32 %r2, %r1;")
    assert findings(skipped) == [("warning", "%r1", 3)]


def test_both_arms_of_a_loop_read_before_it_defines() -> None:
    """No read is reached by a definition but along a path that has read the register before."""
    body = """setp.eq.b32 %p1, 0, 0;
LOOP:
    @%p1 bra ELSE;
    mov.b32 %r2, %r1;
    bra JOIN;
ELSE:
    mov.b32 %r3, %r1;
JOIN:
    mov.b32 %r1, 0;
    @%p1 bra LOOP;
    ret;"""
    assert findings(body) == [("error", "%r1", 4)]
    one_arm = body.replace("mov.b32 %r3, %r1;", "mov.b32 %r3, 0;")
    assert findings(one_arm) == [("warning", "%r1", 4)]


def test_first_round_that_does_not_read() -> None:
    """for (i ...) { if (i > 0) use(x); x = ...; }"""
    body = """mov.b32 %r3, 0;
LOOP:
    setp.eq.u32 %p1, %r3, 0;
    @%p1 bra SKIP;
    mov.b32 %r2, %r1;
SKIP:
    mov.b32 %r1, %r3;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p2, %r3, 9;
    @%p2 bra LOOP;
    ret;"""
    assert findings(body) == [("warning", "%r1", 5)]
    predicated = body.replace("@%p1 bra SKIP;", "").replace("    mov.b32 %r2", "@!%p1 mov.b32 %r2")
    assert findings(predicated) == [("warning", "%r1", 5)]
    selected = body.replace("@%p1 bra SKIP;", "").replace(
        "mov.b32 %r2, %r1;", "selp.b32 %r2, 0, %r1, %p1;"
    )
    assert findings(selected) == [("warning", "%r1", 5)]


def test_set_and_used_under_one_condition() -> None:
    """if (c) x = ...; __syncthreads(); if (c) use(x);"""
    body = """setp.eq.b32 %p1, 0, 0;
    @%p1 bra A;
    mov.b32 %r1, 0;
A:  bar.sync 0;
    @%p1 bra B;
    mov.b32 %r2, %r1;
B:  ret;"""
    assert findings(body) == [("warning", "%r1", 6)]


def test_defined_on_all_paths_or_on_one() -> None:
    body = """setp.eq.b32 %p1, 0, 0;
    @%p1 bra ELSE;
    mov.b32 %r1, 1;
    bra JOIN;
ELSE:
    mov.b32 %r1, 2;
JOIN:
    mov.b32 %r2, %r1;
    ret;"""
    assert findings(body) == []
    assert findings(body.replace("mov.b32 %r1, 2;", "")) == [("warning", "%r1", 8)]


def test_read_on_a_side_path_only() -> None:
    """The definition does not reach it, whatever happens on the other path."""
    body = """setp.eq.b32 %p1, 0, 0;
    @%p1 bra ELSE;
    mov.b32 %r2, %r1;
    ret;
ELSE:
    mov.b32 %r1, 2;
    mov.b32 %r2, %r1;
    ret;"""
    assert findings(body) == [("error", "%r1", 3)]


def test_unreachable_code() -> None:
    assert findings("ret; DEAD: mov.b32 %r2, %r1; bra DEAD;") == []
    dead_definition = "bra NEXT; mov.b32 %r1, 0;\nNEXT: mov.b32 %r2, %r1; ret;"
    assert findings(dead_definition) == [("error", "%r1", 2)]


def test_predicated_definitions_define() -> None:
    start = "setp.eq.b32 %p1, 0, 0; mov.b32 %r3, 0; "
    assert findings(start + "@%p1 mov.b32 %r1, 0; @!%p1 mov.b32 %r1, 1; mov.b32 %r2, %r1;") == []
    triton = "@%p1 ld.shared.b32 %r1, [%r3]; shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; ret;"
    assert findings(start + triton) == []
    loop = "L:\nmov.b32 %r2, %r1;\n@%p1 mov.b32 %r1, 0;\n@%p1 bra L; ret;"
    assert findings(start + loop) == [("error", "%r1", 2)]


def test_predicate_itself_is_read_for_certain() -> None:
    body = "L: @%p1 mov.b32 %r1, 0; setp.eq.b32 %p1, 0, 0; @%p1 bra L; ret;"
    assert findings(body) == [("error", "%p1", 1)]


def test_vector_destinations_and_sinks() -> None:
    start = "mov.b64 %rd1, out; "
    assert findings(start + "ld.global.v2.b32 {%r1, _}, [%rd1]; mov.b32 %r2, %r1; ret;") == []
    body = "ld.global.v2.b32 {%r1, _}, [%rd1]; mov.b32 %r3, %r2; ret;"
    assert findings(start + body) == [("error", "%r2", 1)]
    assert findings("elect.sync _|%p1, -1; @%p1 ret; ret;") == []


def test_nested_scopes_are_kept_apart() -> None:
    body = """{ .reg .b32 t; mov.b32 t, 0; }
{ .reg .b32 t;
  mov.b32 %r1, t; }
ret;"""
    assert findings(body) == [("error", "t.2", 3)]


WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, "


def test_wgmma_accumulators() -> None:
    start = "mov.b64 %rd1, 0; setp.eq.b32 %p1, 0, 1;\n"
    assert findings(f"{start}{WGMMA}0, 1, 1, 0, 0; ret;") == []
    assert findings(f"{start}{WGMMA}0, 1, 1, 0, 0; {WGMMA}1, 1, 1, 0, 0; ret;") == []
    assert findings(f"{start}{WGMMA}1, 1, 1, 0, 0; ret;") == [
        ("error", f"%f{i}", 2) for i in (1, 2, 3, 4)
    ]


def test_wgmma_whose_scale_d_is_a_predicate() -> None:
    start = "mov.b64 %rd1, 0; setp.eq.b32 %p1, 0, 1;\n"
    assert findings(f"{start}L: {WGMMA}%p1, 1, 1, 0, 0; @%p1 bra L; ret;") == []
    later = findings(f"{start}@%p1 bra L;\n{WGMMA}%p1, 1, 1, 0, 0;\nL: mov.b32 %r1, %f2; ret;")
    assert later == [("warning", "%f2", 4)]


@pytest.mark.parametrize(
    "instruction",
    [
        "mov.b32 %r1, {%h1, %h2};",
        "st.shared.v2.b16 [%r2], {%h2, %h1};",
        "cvt.rn.satfinite.e4m3x2.f32 %h3, %f1, %f2;",
        "cvt.rn.bf16x2.f32 %r1, %f1, %f2;",
    ],
)
def test_part_of_a_packed_value_that_nobody_sets(instruction: str) -> None:
    start = "mov.b16 %h1, 0; mov.b32 %r2, 0; mov.f32 %f2, 0f00000000;\n"
    assert findings(f"{start}{instruction} ret;") == []
    register = "%f1" if "cvt" in instruction else "%h2"
    setting = f"mov.b16 {register}, 0;" if "h" in register else f"mov.f32 {register}, 0f00000000;"
    assert findings(f"{start}{instruction} {setting} ret;") == [("error", register, 2)]


def test_a_whole_value_that_nobody_sets() -> None:
    guarded = "mov.b16 %h1, 0; @%p1 mov.b32 %r1, {%h1, %h2}; ret;"
    assert findings(guarded) == [("error", "%p1", 1)]
    assert findings("cvt.rn.f16x2.e4m3x2 %r1, %h1; ret;") == [("error", "%h1", 1)]
    assert findings("mov.b64 %rd1, out; st.global.b32 [%rd1], %r1; ret;") == [("error", "%r1", 1)]


def test_functions_are_held_to_the_rule() -> None:
    text = f"""{HEAD}.func (.reg .b32 r) good(.reg .b32 a) {{ add.u32 r, a, 1; ret; }}
.func bad() {{ .reg .b32 a, b; mov.b32 a, b; ret; }}
.extern .func declared();"""
    assert [(f.entry, f.register, f.line) for f in lint(parse(text))] == [("bad", "b", 5)]


def test_code_behind_a_call_that_does_not_return_is_unreachable() -> None:
    text = f"""{HEAD}.extern .func fail() .noreturn;
.entry k() {{ .reg .pred p; .reg .b32 a, b;
setp.eq.b32 p, 0, 0; @p bra GOOD; call fail;
GOOD: mov.b32 a, 0; mov.b32 b, a; ret; }}"""
    assert lint(parse(text)) == ()


def test_call_results_and_arguments() -> None:
    text = f"""{HEAD}.func (.reg .b32 r) f(.reg .b32 a) {{ add.u32 r, a, 1; ret; }}
.entry k() {{ .reg .b32 a, b;
call (a), f, (b);
mov.b32 b, a; ret; }}"""
    assert [(f.severity, f.register, f.line) for f in lint(parse(text))] == [("error", "b", 6)]


@pytest.mark.parametrize("arch", ["sm_100", "sm_120"])
def test_kernel_that_nvrtc_13_0_miscompiles_is_refused(arch: str) -> None:
    text = (FIXTURES / f"gemm_bf16.nvrtc-13.0.88.{arch}.ptx").read_text()
    (found,) = lint(parse(text))
    assert (found.severity, found.rule) == ("error", "use-before-definition")
    assert (found.entry, found.register, found.line) == ("gemm_bf16", "%rd58", 244)
    assert "`shl.b64 %rd59, %rd58, 1;`" in found.message
    assert "first written in line 246" in found.message


def test_the_same_kernel_from_nvrtc_13_5_is_clean() -> None:
    module = parse((FIXTURES / "gemm_bf16.nvrtc-13.5.37.sm_100.ptx").read_text())
    assert lint(module) == ()
    (gemm,) = module.entries
    assert len(gemm.instructions) > 300
    assert gemm.directives == {"maxntid": (128,), "minnctapersm": (2,)}
