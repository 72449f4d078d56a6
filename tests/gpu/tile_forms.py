"""Kernels of one tensor-core instruction each, as PTX text, and their operands as the ISA has them.

A block computes one tile, D = A B + C: A [m, k], B [n, k], C and D [m, n]. Sources: PTX ISA, Matrix
multiply-accumulate operation using mma instruction; Asynchronous warpgroup level matrix shared
memory layout; Register fragments for wgmma.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tile_bits
from tile_bits import SIZES

ENTRY = "tile"
_HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"
_WARP, _GROUP_THREADS, _GROUP_WARPS = 32, 128, 4
SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
_MODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
_CORE_BYTES, _ATOM_ROWS, _K_BYTES = 16, 8, 32
_SHARED_ALIGN = 1024  # bytes: the period of the widest swizzle


@dataclass(frozen=True)
class Tiles:
    """Operands of many tiles, as bits: a [tiles, m, k], b [tiles, n, k], c [tiles, m, n]."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray

    def __len__(self) -> int:
        return len(self.a)


@dataclass(frozen=True)
class Form:
    """What both instructions have: element types of A, B and D; D's is C's. sizes: m, n, k."""

    a: str
    b: str
    d: str
    sizes: tuple[int, int, int]

    @property
    def k(self) -> int:
        return self.sizes[2]

    def exact(self, tiles: Tiles) -> tuple[np.ndarray, np.ndarray]:
        """D and the sum of the terms' magnitudes, in doubles, [tiles, m, n]."""
        a, b = tile_bits.decode(tiles.a, self.a), tile_bits.decode(tiles.b, self.b)
        c = tile_bits.decode(tiles.c, self.d)
        product, size = a @ b.swapaxes(1, 2), np.abs(a) @ np.abs(b).swapaxes(1, 2)
        return self.signed(product) + self.kept(c), size + np.abs(self.kept(c))

    def signed(self, product: np.ndarray) -> np.ndarray:
        return product

    def kept(self, c: np.ndarray) -> np.ndarray:
        return c

    def accumulators(self, matrix: np.ndarray, warps: int) -> np.ndarray:
        """[tiles, m, n] bits to the words of each thread, [tiles, threads, registers]."""
        n8 = self.sizes[1] // 8
        parts = matrix.reshape(len(matrix), warps, 2, 8, n8, 4, 2).transpose(0, 1, 3, 5, 4, 2, 6)
        return tile_bits.words(parts.reshape(len(matrix), warps * _WARP, -1), self.d)

    def matrix(self, registers: np.ndarray, warps: int) -> np.ndarray:
        """The reverse of `accumulators`."""
        n8 = self.sizes[1] // 8
        parts = tile_bits.elements(registers, self.d)
        parts = parts.reshape(len(registers), warps, 8, 4, n8, 2, 2).transpose(0, 1, 5, 2, 4, 3, 6)
        return parts.reshape(len(registers), *self.sizes[:2])

    def fragments_of_a(self, a: np.ndarray, warps: int) -> np.ndarray:
        packed = tile_bits.words(a, self.a)
        halves = packed.shape[2] // 4
        parts = packed.reshape(len(a), warps, 2, 8, halves, 4).transpose(0, 1, 3, 5, 4, 2)
        return parts.reshape(len(a), warps * _WARP, -1)


@dataclass(frozen=True)
class MmaForm(Form):
    """mma.sync.aligned."""

    saturating: bool = False

    threads = _WARP

    @property
    def name(self) -> str:
        m, n, k = self.sizes
        saturating = ".satfinite" if self.saturating else ""
        return (
            f"mma.sync.aligned.m{m}n{n}k{k}.row.col{saturating}.{self.d}.{self.a}.{self.b}.{self.d}"
        )

    @property
    def out_words(self) -> int:
        return 2 if self.d == "f16" else 4

    def memory(self, tiles: Tiles) -> list[np.ndarray]:
        """What the kernel's input pointers show it, each [tiles, ...]."""
        packed = tile_bits.words(tiles.b, self.b)
        b = packed.reshape(len(tiles), 8, -1, 4).transpose(0, 1, 3, 2)
        return [
            np.concatenate(
                [
                    self.fragments_of_a(tiles.a, 1),
                    b.reshape(len(tiles), _WARP, -1),
                    self.accumulators(tiles.c, 1),
                ],
                axis=2,
            )
        ]

    def result(self, out: np.ndarray) -> np.ndarray:
        return self.matrix(out, 1)

    @property
    def text(self) -> str:
        row_words = self.k * SIZES[self.a] // 4
        counts = (row_words // 2, row_words // 4, self.out_words)
        names = [f"s{i}" for i in range(sum(counts))]
        a, b, c = (
            names[start : start + count]
            for start, count in zip((0, counts[0], counts[0] + counts[1]), counts, strict=True)
        )
        d = [f"d{i}" for i in range(self.out_words)]
        return _kernel(
            ["source"], _WARP, [("s", len(names)), ("d", len(d))],
            [
                *_thread_address("source", 4 * len(names)),
                *_loads(names, "source"),
                f"{self.name} {_group(d)}, {_group(a)}, {_group(b)}, {_group(c)};",
                *_thread_address("target", 4 * len(d)),
                *_stores(d, "target"),
            ],
        )  # fmt: skip


@dataclass(frozen=True)
class WgmmaForm(Form):
    """wgmma.mma_async: A in registers or in shared memory, B there.

    mode: swizzle of both matrices; mn_major: whether A's and B's rows run along m and n. signs:
    the factors of A and B. keeps: whether D's old value is added.
    """

    in_registers: bool = False
    mode: str = "128B"
    mn_major: tuple[bool, bool] = (False, False)
    signs: tuple[int, int] = (1, 1)
    keeps: bool = True

    threads = _GROUP_THREADS

    @property
    def name(self) -> str:
        place = "registers" if self.in_registers else "shared"
        majors = "/".join("mn" if major else "k" for major in self.mn_major)
        rest = "" if self.signs == (1, 1) else f" signs {self.signs[0]},{self.signs[1]}"
        rest += "" if self.keeps else " scale-d 0"
        return f"{self._opcode} A in {place}, swizzle {self.mode}, major {majors}{rest}"

    @property
    def _opcode(self) -> str:
        m, n, k = self.sizes
        return f"wgmma.mma_async.sync.aligned.m{m}n{n}k{k}.{self.d}.{self.a}.{self.b}"

    @property
    def out_words(self) -> int:
        return self.sizes[1] // (4 if self.d == "f16" else 2)

    def signed(self, product: np.ndarray) -> np.ndarray:
        return product * (self.signs[0] * self.signs[1])

    def kept(self, c: np.ndarray) -> np.ndarray:
        return c if self.keeps else np.zeros_like(c)

    def _matrices(self) -> tuple[Layout, Layout]:
        m, n, _ = self.sizes
        a, b = (
            layout(rows, SIZES[self.a], self.mode, major)
            for rows, major in zip((m, n), self.mn_major, strict=True)
        )
        return a, b

    def memory(self, tiles: Tiles) -> list[np.ndarray]:
        a, b = self._matrices()
        image = np.zeros((len(tiles), a.size_bytes + b.size_bytes), np.uint8)
        if not self.in_registers:
            a.put(image[:, : a.size_bytes], tiles.a)
        b.put(image[:, a.size_bytes :], tiles.b)
        registers = self.accumulators(tiles.c, _GROUP_WARPS)
        if self.in_registers:
            left = self.fragments_of_a(tiles.a, _GROUP_WARPS)
            registers = np.concatenate([left, registers], axis=2)
        return [image.view(np.uint32), registers]

    def result(self, out: np.ndarray) -> np.ndarray:
        return self.matrix(out, _GROUP_WARPS)

    @property
    def text(self) -> str:
        a, b = self._matrices()
        total = a.size_bytes + b.size_bytes
        left = [f"a{i}" for i in range(4)] if self.in_registers else []
        d = [f"d{i}" for i in range(self.out_words)]
        flags = "" if self.d == "s32" else f", {self.signs[0]}, {self.signs[1]}"
        if SIZES[self.a] == 2:
            majors = self.mn_major[1:] if self.in_registers else self.mn_major
            flags += "".join(f", {int(major)}" for major in majors)
        first = _group(left) if left else "descriptor_a"
        return _kernel(
            ["image", "registers"], _GROUP_THREADS, [("a", 4), ("d", len(d))],
            [
                *_fill_shared(total),
                *_thread_address("registers", 4 * (len(left) + len(d))),
                *_loads([*left, *d], "registers"),
                ".reg .b64 start, descriptor_a, descriptor_b; .reg .b32 place; .reg .pred keeps;",
                "mov.u32 place, cells; shr.u32 place, place, 4; cvt.u64.u32 start, place;",
                f"add.u64 descriptor_a, start, {a.descriptor(0)};",
                f"add.u64 descriptor_b, start, {b.descriptor(a.size_bytes)};",
                f"setp.ne.u32 keeps, place, {0 if self.keeps else 'place'};",
                "wgmma.fence.sync.aligned;",
                f"{self._opcode} {_group(d)}, {first}, descriptor_b, keeps{flags};",
                "wgmma.commit_group.sync.aligned;",
                "wgmma.wait_group.sync.aligned 0;",
                *_thread_address("target", 4 * len(d)),
                *_stores(d, "target"),
            ],
            shared_bytes=total,
        )  # fmt: skip


# ---- shared memory


@dataclass(frozen=True)
class Layout:
    """A matrix [rows, k] in shared memory. leading, stride: the descriptor's offsets in bytes."""

    offsets: np.ndarray
    size: int
    mode: str
    leading: int
    stride: int
    size_bytes: int

    def put(self, image: np.ndarray, bits: np.ndarray) -> None:
        """Write the bits of [tiles, rows, k] elements into [tiles, bytes]."""
        for byte in range(self.size):
            image[:, self.offsets + byte] = bits >> np.uint32(8 * byte) & np.uint32(0xFF)

    def descriptor(self, start: int) -> int:
        """The matrix descriptor, but for the address of shared memory itself, from which it starts
        so many bytes on."""
        fields = start >> 4 | (self.leading >> 4) << 16 | (self.stride >> 4) << 32
        return fields | _MODES[self.mode] << 62


def layout(rows: int, size: int, mode: str, mn_major: bool) -> Layout:
    """The canonical layout without gaps, its start at a multiple of 1024 bytes."""
    span = SPANS[mode]
    r, k = np.arange(rows)[:, None], np.arange(_K_BYTES // size)[None]
    per_core = _CORE_BYTES // size
    if not mn_major and span:
        leading, stride = _CORE_BYTES, _ATOM_ROWS * span
        offsets = r // 8 * stride + r % 8 * span + k * size
    elif not mn_major:
        leading, stride = _ATOM_ROWS * _CORE_BYTES, 2 * _ATOM_ROWS * _CORE_BYTES
        offsets = r // 8 * stride + r % 8 * _CORE_BYTES + k // per_core * leading
        offsets = offsets + k % per_core * size
    elif span:
        wide = span // size
        stride, leading = _ATOM_ROWS * span, 2 * _ATOM_ROWS * span
        offsets = r // wide * leading + r % wide * size + k // 8 * stride + k % 8 * span
    else:
        stride = _ATOM_ROWS * _CORE_BYTES
        leading = stride * -(-rows // per_core)
        offsets = r // per_core * stride + r % per_core * size
        offsets = offsets + k // 8 * leading + k % 8 * _CORE_BYTES
    swizzle_mask = span // _CORE_BYTES - 1 if span else 0
    offsets = offsets ^ ((offsets >> 7 & swizzle_mask) << 4)
    end = int(offsets.max()) + size
    return Layout(
        offsets, size, mode, leading, stride, -(-end // _SHARED_ALIGN) * _SHARED_ALIGN
    )  # fmt: skip


# ---- text


def _kernel(
    sources: Sequence[str], threads: int, registers: Sequence[tuple[str, int]],
    lines: Sequence[str], shared_bytes: int = 0,
) -> str:  # fmt: skip
    """An entry with a pointer for each source and one called target, for blocks of so many threads.

    Pointers are in registers of their names; `thread` counts over all blocks.
    """
    pointers = [*sources, "target"]
    params = ", ".join(f".param .u64 {name}_param" for name in pointers)
    declared = [f".reg .b32 {name}<{count}>;" for name, count in registers]
    declared += [f".reg .b64 {', '.join(pointers)}; .reg .b32 block, local, thread;"]
    if shared_bytes:
        declared += [f".shared .align {_SHARED_ALIGN} .b8 cells[{shared_bytes}];"]
    loads = []
    for name in pointers:
        loads += [f"ld.param.u64 {name}, [{name}_param];", f"cvta.to.global.u64 {name}, {name};"]
    body = "\n ".join(
        [
            *declared, *loads, "mov.u32 block, %ctaid.x;", "mov.u32 local, %tid.x;",
            f"mad.lo.u32 thread, block, {threads}, local;", *lines, "ret;",
        ]
    )  # fmt: skip
    return (
        f"{_HEADER}.visible .entry {ENTRY}({params})\n.reqntid {threads}, 1, 1\n{{\n {body}\n}}\n"
    )


def _thread_address(pointer: str, step_bytes: int) -> list[str]:
    return [f"mad.wide.u32 {pointer}, thread, {step_bytes}, {pointer};"]


def _loads(names: Sequence[str], pointer: str) -> list[str]:
    return [f"ld.global.b32 {name}, [{pointer}+{4 * i}];" for i, name in enumerate(names)]


def _stores(names: Sequence[str], pointer: str) -> list[str]:
    return [f"st.global.b32 [{pointer}+{4 * i}], {name};" for i, name in enumerate(names)]


def _group(names: Sequence[str]) -> str:
    return "{" + ", ".join(names) + "}"


def _fill_shared(total: int) -> list[str]:
    """Copy the block's part of `image` to shared memory, and show it to the async proxy."""
    return [
        ".reg .b32 at, to, w<4>; .reg .b64 from; .reg .pred done;",
        f"mad.wide.u32 image, block, {total}, image;",
        "mov.u32 at, local;",
        "FILL:",
        f"setp.ge.u32 done, at, {total // _CORE_BYTES};",
        "@done bra FILLED;",
        f"mad.wide.u32 from, at, {_CORE_BYTES}, image;",
        "ld.global.v4.b32 {w0, w1, w2, w3}, [from];",
        "mov.u32 to, cells;",
        f"mad.lo.u32 to, at, {_CORE_BYTES}, to;",
        "st.shared.v4.b32 [to], {w0, w1, w2, w3};",
        f"add.u32 at, at, {_GROUP_THREADS};",
        "bra FILL;",
        "FILLED:",
        "fence.proxy.async;",
        "bar.sync 0;",
    ]


# ---- all that are compared


def mma_forms() -> list[MmaForm]:
    """What sm_90 has of the types and shapes that the emulator models."""
    forms = [
        MmaForm(kind, kind, d, (16, 8, k))
        for kind, ks, ds in (
            ("bf16", (8, 16), ("f32",)), ("f16", (8, 16), ("f32", "f16")),
            ("tf32", (4, 8), ("f32",)),
        )
        for k in ks
        for d in ds
    ]  # fmt: skip
    forms += [
        MmaForm(a, b, "f32", (16, 8, k))
        for a in tile_bits.FP8
        for b in tile_bits.FP8
        for k in (16, 32)
    ]
    return forms + [
        MmaForm(a, b, "s32", (16, 8, k), saturating)
        for a in ("s8", "u8")
        for b in ("s8", "u8")
        for k in (16, 32)
        for saturating in (False, True)
    ]


_WIDTHS = (8, 16, 24, 40, 64, 96, 128, 192, 248, 256)
_MAJORS = ((False, False), (True, False), (False, True), (True, True))


def wgmma_forms() -> list[WgmmaForm]:
    """Every type, layout and place of A, and several widths."""

    def form(a: str, b: str, d: str, n: int, *options: object) -> WgmmaForm:
        return WgmmaForm(a, b, d, (64, n, _K_BYTES // SIZES[a]), *options)  # type: ignore[arg-type]

    forms = [form("bf16", "bf16", "f32", n, in_r) for n in _WIDTHS for in_r in (False, True)]
    forms += [
        form(kind, kind, "f32", 64, in_registers, mode, majors)
        for kind in ("bf16", "f16")
        for in_registers in (False, True)
        for mode in _MODES
        for majors in _MAJORS
        if not (in_registers and majors[0])
    ]
    pairs = [("f16", "f16", "f16"), ("tf32", "tf32", "f32")]
    pairs += [(a, b, d) for d in ("f32", "f16") for a in tile_bits.FP8 for b in tile_bits.FP8]
    pairs += [(a, b, "s32") for a in ("s8", "u8") for b in ("s8", "u8")]
    modes = list(_MODES)
    forms += [
        form(*pair, 16 * (number + 1), in_registers, modes[(number + in_registers) % len(modes)])
        for number, pair in enumerate(pairs)
        for in_registers in (False, True)
    ]
    for d in ("f32", "f16"):
        for signs in ((-1, 1), (1, -1), (-1, -1)):
            forms.append(form("f16", "f16", d, 32, False, "128B", (False, False), signs))
        forms.append(form("f16", "f16", d, 32, False, "128B", (False, False), (1, 1), False))
    forms.append(form("f16", "f16", "f32", 32, True, "128B", (False, False), (-1, 1), False))
    return list(dict.fromkeys(forms))
