"""Kernels of one scalar instruction each, and data for them: every thread one element.

Operands and results are 32-bit words; a packed or narrow type has its place in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from half_forms import half_forms

ENTRY = "function"
THREADS = 128
_HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"
_RANDOM_BLOCKS = 96
_EDGES = (
    0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x80800000, 0x3F800000, 0xBF800000,
    0x3F800001, 0x3F7FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC01234,
    0x7F800001, 0x3F000000, 0x3FC00000, 0x40200000, 0x43E00000, 0x43E80000, 0x47600000, 0x477FE000,
    0x33800000, 0x3B000000, 0x3A800000, 0x4B000001, 0x4F000000, 0xCF000000, 0x5F000000, 0x7E800000,
)  # fmt: skip
"""Zeros, subnormals, ones and their neighbours, largest values of f32, bf16, f16 and fp8, halves
that round to even, inf and NaN."""


@dataclass(frozen=True)
class FunctionForm:
    """code: instructions that make d from a, b and c; h0 to h3 are 16-bit registers. result: the
    type that differences are told in. exact: whether the ISA leaves no room; then results are equal
    but for the bits of a NaN. refused: PTX has no such instruction, and nobody is to take it."""

    name: str
    code: str
    result: str = "f32"
    exact: bool = True
    refused: bool = False

    @property
    def text(self) -> str:
        params = ", ".join(f".param .u64 {n}_param" for n in ("source", "target"))
        return (
            f"{_HEADER}.visible .entry {ENTRY}({params})\n.reqntid {THREADS}, 1, 1\n{{\n"
            " .reg .b32 a, b, c, d, block, local, thread; .reg .b16 h<4>; .reg .pred p, q;\n"
            " .reg .b64 source, target, pair;\n"
            " ld.param.u64 source, [source_param]; ld.param.u64 target, [target_param];\n"
            " cvta.to.global.u64 source, source; cvta.to.global.u64 target, target;\n"
            " mov.u32 block, %ctaid.x; mov.u32 local, %tid.x;\n"
            f" mad.lo.u32 thread, block, {THREADS}, local;\n"
            " mad.wide.u32 source, thread, 12, source; mad.wide.u32 target, thread, 4, target;\n"
            " ld.global.b32 a, [source]; ld.global.b32 b, [source+4];\n"
            " ld.global.b32 c, [source+8];\n"
            f" {self.code}\n st.global.b32 [target], d;\n ret;\n}}\n"
        )


def operands() -> np.ndarray:
    """[blocks, THREADS, 3] uint32: all pairs of edge values, then random bits, values near 1, and
    what tells when .ftz takes a result for tiny."""
    rng = np.random.default_rng(0)
    pairs = np.array(list(product(_EDGES, _EDGES)), np.uint32)
    third = rng.choice(np.array(_EDGES, np.uint32), (len(pairs), 1))
    edges = np.concatenate([pairs, third], axis=1).reshape(-1, THREADS, 3)
    shape = (_RANDOM_BLOCKS, THREADS, 3)
    any_bits = rng.integers(0, 1 << 32, shape, np.uint32)
    spread = np.exp2(rng.uniform(-12, 12, shape)) * rng.choice([-1.0, 1.0], shape)
    near_one = spread.astype(np.float32).view(np.uint32)
    return np.concatenate([edges, any_bits, near_one, _nearly_normal()])


def _nearly_normal() -> np.ndarray:
    """[1, THREADS, 3]: of f32 a b is 2^-126 less 2^-46 i^2 of it, for f16 halves 2^-14 less 2^-20
    i^2; in the last quarter b and a are the high and the low word of a double near 2^-126.

    Rounded to the bits of a normal number some are 2^-126, and some below it.
    """
    near = np.array([1, 2, 64, 1447, 1448, 1449, 2047, 2048], np.uint32).repeat(8)
    half = (np.arange(32, dtype=np.uint32) + 1) * np.uint32(0x10001)
    low = np.array([0xDFFFFFFF, 0xE0000000, 0xE0000001, 0xEFFFFFFF, 0xF0000000, 0xF0000001,
                    0xFFFFFFFF, 0x00000000], np.uint32).repeat(4)  # fmt: skip
    a = np.concatenate([0x20000000 | near, 0x20002000 | half, low])
    b = np.concatenate([0x20000000 - 2 * near, 0x20002000 - 2 * half,
                        np.where(low == 0, 0x38100000, 0x380FFFFF)])  # fmt: skip
    b[1::2] |= np.uint32(0x80000000)
    c = np.tile(np.array([0, 0, 0x80000000, 0x80000000], np.uint32), THREADS // 4)
    return np.stack([a, b, c], axis=1).astype(np.uint32)[None]


def function_forms() -> list[FunctionForm]:
    exact = [
        f"{op}.{mode}{ftz}.f32 d, a, b{', c' if op == 'fma' else ''};"
        for op in ("add", "sub", "mul", "fma")
        for mode in ("rn", "rz", "rm", "rp")
        for ftz in ("", ".ftz", ".sat")
    ]
    exact += [f"{op}{how}.f32 d, a, b;" for op in ("min", "max") for how in ("", ".NaN", ".ftz")]
    exact += [
        f"{op}.{mode}{ftz}.f32 d, a{', b' if op == 'div' else ''};"
        for op in ("div", "rcp", "sqrt")
        for mode in ("rn", "rz", "rm", "rp")
        for ftz in ("", ".ftz")
    ]
    exact += [
        f"mov.b64 pair, {{a, b}}; cvt.{mode}.ftz.f32.f64 d, pair;"
        for mode in ("rn", "rz", "rm", "rp")
    ]
    exact += ["cvt.rmi.f32.f32 d, a;", "cvt.rn.f32.s32 d, a;"]
    approximate = [
        f"{op}.approx{ftz}.f32 d, a;"
        for op in ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos")
        for ftz in ("", ".ftz")
    ]
    approximate += ["tanh.approx.f32 d, a;"]
    approximate += [
        f"div.{how}{ftz}.f32 d, a, b;" for how in ("approx", "full") for ftz in ("", ".ftz")
    ]
    packed = [
        ("f16x2", f"{code}.f16x2 d, a, b{', c' if 'fma' in code else ''};", True)
        for code in ("add.rn", "mul.rn", "fma.rn", "max", "max.NaN", "min")
    ]
    packed += [
        ("f16x2", "mul.rn.ftz.f16x2 d, a, b;", True),
        ("f16x2", "fma.rn.ftz.f16x2 d, a, b, c;", True),
    ]
    packed += [
        ("bf16x2", f"{code}.bf16x2 d, a, b{', c' if 'fma' in code else ''};", True)
        for code in ("add.rn", "mul.rn", "fma.rn", "max", "max.NaN", "min")
    ]
    packed += [
        ("bf16x2", "cvt.rn.bf16x2.f32 d, a, b;", True),
        ("f16x2", "cvt.rn.f16x2.f32 d, a, b;", True),
        ("bf16x2", "cvt.rz.bf16x2.f32 d, a, b;", True),
        ("bf16x2", "cvt.rn.relu.bf16x2.f32 d, a, b;", True),
        ("f16x2", "ex2.approx.f16x2 d, a;", False),
        ("bf16x2", "ex2.approx.ftz.bf16x2 d, a;", False),
        ("f16x2", "tanh.approx.f16x2 d, a;", False),
        ("bf16x2", "tanh.approx.bf16x2 d, a;", False),
    ]
    for kind in ("e4m3x2", "e5m2x2"):
        narrow = f"cvt.rn.satfinite.{kind}.f32 h0, a, b; cvt.u32.u16 d, h0;"
        wide = f"cvt.u16.u32 h0, a; cvt.rn.f16x2.{kind} d, h0;"
        packed += [("bits", narrow, True), ("f16x2", wide, True)]
    packed += [
        ("bits", f"cvt.{how}.f32 d, a;", True)
        for how in ("rna.tf32", "rni.s32", "rzi.u32", "rzi.s32")
    ]
    forms = [FunctionForm(_name(code), code) for code in exact]
    forms += [FunctionForm(_name(code), code, exact=False) for code in approximate]
    forms += [FunctionForm(_name(code), code, kind, sure) for kind, code, sure in packed]
    forms += [FunctionForm(*parts) for parts in half_forms()]
    unknown = "barrier.warp.sync"
    return [*forms, FunctionForm(unknown, f"{unknown} 0xffffffff; mov.b32 d, a;", refused=True)]


def _name(code: str) -> str:
    named = [part.split()[0] for part in code.split(";") if part.strip()]
    return next(n for n in named if n not in ("cvt.u32.u16", "cvt.u16.u32", "mov.b64"))
