"""Forms on registers, loads, stores and atomics: the table takes nothing that ptxas refuses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import form_spellings
import pytest
from test_matrix_shapes import assembled, ptxas_files

from sparsekit.emulator import UnsupportedError, load

VERSION, TARGET = "9.1", "sm_100a"
SAMPLE = 40  # lines of a chapter that the default run asks of
REGISTERS = form_spellings.REGISTERS + " .reg .b32 w<8>;"


def text_of(lines: Sequence[str], target: str) -> str:
    head = f".version {VERSION} .target {target} .address_size 64 .visible .entry test() {{ "
    body = "\n".join(lines)
    for letter in "fr":  # the last line names many registers
        for number in range(9, 192):
            if f" {letter}{number}" in body or f"{{{letter}{number}" in body:
                head += f".reg .{'f32' if letter == 'f' else 'b32'} {letter}{number}; "
    return head + REGISTERS + " " + body + "\nret; }\n"


def is_taken(line: str) -> bool:
    try:
        code, translations = load(text_of([line], TARGET)).prepared("test")
        for block in code.blocks:
            translations.of(block.number, False)
    except UnsupportedError:
        return False
    return True


@pytest.fixture
def ptxas() -> Path:
    found = [file for file in ptxas_files() if file.name == "ptxas-blackwell"]
    if not found:
        pytest.skip("no ptxas-blackwell in the installed Triton")
    return found[0]


def check(ptxas, chapter, folder, most):
    """Of all spellings, or of so many of each form that chance takes."""
    rng = random.Random(chapter)
    lines = list(dict.fromkeys(form_spellings.lines(chapter)))
    if len(lines) > most:
        lines = rng.sample(lines, most)
    taken = [line for line in lines if is_taken(line)]
    assert taken
    refused = set(taken) - assembled(ptxas, taken, TARGET, folder, text_of)
    assert not refused, sorted(refused)[:20]


@pytest.mark.parametrize("chapter", form_spellings.CHAPTERS_OF_PLAIN_FORMS)
def test_some_spellings(ptxas, chapter, tmp_path):
    check(ptxas, chapter, tmp_path, SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", form_spellings.CHAPTERS_OF_PLAIN_FORMS)
def test_all_spellings(ptxas, chapter, tmp_path):
    check(ptxas, chapter, tmp_path, 100_000)


@pytest.mark.parametrize("text", [
    "sub.s16x2 r0, r1, r2;", "add.sat.bf16 h0, h1, h2;", "add.ftz.bf16x2 r0, r1, r2;",
    "fma.rn.sat.relu.f16 h0, h1, h2, h3;", "ex2.approx.ftz.f16 h0, h1;", "ex2.approx.bf16 h0, h1;",
    "max.xorsign.abs.f32 f0, f1, f2, f3;", "max.ftz.bf16 h0, h1, h2;", "setp.hi.s32 p0, r1, r2;",
    "setp.hi.f32 p0, f1, f2;", "setp.lt.b32 p0, r1, r2;", "setp.lt.ftz.u32 p0, r1, r2;",
    "setp.ltu.s32 p0, r1, r2;", "set.eq.ftz.u32.f64 r0, g1, g2;", "set.eq.f16.bf16 h0, h1, h2;",
    "cvt.sat.u32.u16 r0, h1;", "cvt.rn.sat.bf16.f32 h0, f1;", "cvt.rn.ftz.relu.f16.f32 h0, f1;",
    "cvt.rn.ftz.f64.s32 g0, r1;", "cvt.rn.bf16.s8 h0, r1;", "cvt.f16.f64 h0, g1;",
    "ld.relaxed.global.u32 r0, [l0];", "ld.cta.global.u32 r0, [l0];", "ld.nc.u32 r0, [l0];",
    "ld.volatile.const.u32 r0, [l0];", "ld.shared.v8.u32 {r0, r1, r2, r3, r4, r5, r6, r7}, [l0];",
    "ld.global.v2.b128 {q0, q1}, [l0];", "st.const.u32 [l0], r0;", "st.release.u32 [l0], r0;",
    "red.acquire.gpu.add.u32 [l0], r0;", "red.shared.add.v2.f32 [l0], {f0, f1};",
    "mbarrier.arrive.release.b64 l1, [l0];", "mbarrier.test_wait.cta.b64 p0, [l0], l1;",
    "fence.proxy.alias.global;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.max.noftz.f16 [l0], [l1], 16;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [l0], [l1], 16;",
])  # fmt: skip
def test_what_ptxas_refuses_is_refused(text):
    assert not is_taken(text)


def test_ptxas_refuses_those(ptxas, tmp_path):
    (mark,) = [m for m in test_what_ptxas_refuses_is_refused.pytestmark if m.name == "parametrize"]
    assert assembled(ptxas, mark.args[1], TARGET, tmp_path, text_of) == set()
