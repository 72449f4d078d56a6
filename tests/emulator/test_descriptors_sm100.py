"""Descriptors of our Blackwell kernels, bit by bit, against the tables of the PTX ISA.

The tables ("Shared memory descriptor", "Instruction descriptor") are written out here by hand; the
emulator's own decoding takes no part in what is expected.
"""

from __future__ import annotations

import numpy as np
import pytest
from nvrtc_ptx import compiled
from own_kernel import OwnKernel

from sparsekit.emulator import Memory, launch, load
from sparsekit.emulator.isa import tcgen05_copy, tcgen05_mma


def fields(*parts: tuple[int, int, int]) -> int:
    """The number that has value v in bits [low, low + width) for each part (low, width, v)."""
    number = 0
    for low, width, value in parts:
        assert 0 <= value < 1 << width
        number |= value << low
    return number


def matrix(start: int, leading: int, stride: int, swizzle: int) -> int:
    """Bits of a shared memory descriptor; addresses and offsets in units of 16 bytes."""
    return fields(
        (0, 14, start), (16, 14, leading), (32, 14, stride),
        (46, 3, 0b001),  # fixed
        (49, 3, 0),  # base offset: patterns start at multiples of their size
        (52, 1, 0),  # leading offsets are relative
        (53, 8, 0),  # fixed
        (61, 3, swizzle),
    )  # fmt: skip


def instruction(m: int, n: int, transpose_b: int) -> int:
    """Bits of an instruction descriptor of kind::f16: bf16 by bf16 to fp32, dense."""
    return fields(
        (0, 2, 0), (2, 1, 0), (3, 1, 0),  # dense, not saturating
        (4, 2, 1),  # D is F32
        (7, 3, 1), (10, 3, 1),  # A and B are BF16
        (13, 1, 0), (14, 1, 0),  # neither negated
        (15, 1, 0), (16, 1, transpose_b), (17, 6, n >> 3), (24, 5, m >> 4),
        (30, 2, 0),  # no shift of B
    )  # fmt: skip


SWIZZLE_128B, SWIZZLE_64B = 2, 4
QK_ONE, PV_ONE = instruction(64, 128, 0), instruction(64, 256, 1)
QK_PAIR, PV_PAIR = instruction(128, 128, 0), instruction(128, 256, 1)


def test_instruction_descriptors_as_numbers():
    """The same in hexadecimal, added up by hand."""
    assert QK_ONE == 0x490 + (128 // 8 << 17) + (64 // 16 << 24) == 0x0420_0490
    assert PV_ONE == 0x0441_0490
    assert QK_PAIR == 0x0820_0490
    assert PV_PAIR == 0x0841_0490


@pytest.mark.parametrize(
    ("shared", "leading", "stride"), [(0x400, 16, 1024), (0x2A400, 8192, 1024), (0x38000, 16, 512)]
)
def test_headers(shared, leading, stride):
    memory = Memory()
    out = memory.allocate(8 * 6, "out")
    text = compiled("descriptors_sm100.cu", "sm_100a")
    report = launch(load(text), "descriptors", (1,), 1, [out, shared, leading, stride], memory)
    assert report.ok
    assert memory.read(out, np.uint64).tolist() == [
        matrix(shared >> 4, leading >> 4, stride >> 4, SWIZZLE_128B),
        matrix(shared >> 4, 1, stride >> 4, SWIZZLE_64B),
        QK_ONE, PV_ONE, QK_PAIR, PV_PAIR,
    ]  # fmt: skip


CHUNK, LINE, ROPE_LINE, ROWS, STEP = 8192, 128, 64, 64, 32
KIB = 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "d_qk", "stages", "slot_chunks", "instructions"),
    [
        ("skip", 576, 3, 8, {QK_ONE, PV_ONE}), ("skip", 512, 3, 8, {QK_ONE, PV_ONE}),
        ("skip_pair", 576, 5, 4, {QK_PAIR, PV_PAIR}), ("skip_pair", 512, 6, 4, {QK_PAIR, PV_PAIR}),
    ],
)  # fmt: skip
def test_what_the_kernel_gives_to_the_tensor_cores(
    variant, d_qk, stages, slot_chunks, instructions, tmp_path, monkeypatch
):
    """Every descriptor of a run with all slots in use: where K, V and Q stand in shared memory."""
    seen: dict[str, set[int]] = {"instruction": set(), "product": set(), "copy": set()}

    def spied(module, name, what):
        original = getattr(module, name)

        def spy(descriptor, *args, **options):
            seen[what].add(descriptor)
            return original(descriptor, *args, **options)

        monkeypatch.setattr(module, name, spy)

    spied(tcgen05_mma, "decode", "instruction")
    spied(tcgen05_mma, "tensor_core_operand", "product")
    spied(tcgen05_copy, "tensor_core_operand", "copy")
    kernel = OwnKernel(f"cu/sparse_prefill_sm100:{variant}", "sm_100a", tmp_path)
    pair = slot_chunks == 4
    dims = {"s_q": 2, "s_kv": 400, "h_q": 65 if pair else 9, "d_qk": d_qk, "topk": 64 * stages + 1}
    run = kernel.run(kernel.case("small_512", dims, indices="random"))
    assert (run.faults, run.wrong) == ([], {})
    assert seen["instruction"] == instructions

    # The struct begins at a multiple of 1 KiB: all chunks of all slots, then rope.
    starts = {(d & 0x3FFF) << 4 for d in seen["product"] | seen["copy"]}
    first, rope = min(starts), min(starts) + stages * slot_chunks * CHUNK
    assert first % KIB == 0
    ring = [first + s * slot_chunks * CHUNK for s in range(stages)]
    rope_slots = [rope + s * 2 * ROWS * ROPE_LINE for s in range(stages if d_qk > 512 else 0)]
    pairs = 4  # of chunks that meet the lower and the upper lanes
    pair_bytes = slot_chunks // pairs * CHUNK

    def k_adjoins(start: int) -> int:
        return matrix(start >> 4, 1, 8 * LINE >> 4, SWIZZLE_128B)

    def halves(start: int) -> int:
        return matrix(start >> 4, 1, 8 * ROPE_LINE >> 4, SWIZZLE_64B)

    q_k = {
        k_adjoins(s + p * pair_bytes + k * STEP) for s in ring for p in range(4) for k in range(4)
    }
    rope_k = {halves(s + k * STEP) for s in rope_slots for k in range(2)}
    # V: 64 columns to a line, chunks of them CHUNK apart; a step of 16 tokens is 16 lines on.
    p_v = {
        matrix(s + j * slot_chunks // 2 * CHUNK + k * 16 * LINE >> 4, CHUNK >> 4, 8 * LINE >> 4, 2)
        for s in ring for j in range(2) for k in range(4)
    }  # fmt: skip
    assert seen["product"] <= q_k | rope_k | p_v
    assert len(seen["product"] & p_v) == len(p_v)
    assert len(seen["product"] & q_k) == len(q_k)
    assert seen["product"] & rope_k == rope_k
    # Q: pairs of chunks, 128 lines in a row, and both halves of its rope, in the slots it took.
    copies = {
        k_adjoins(s + p * 2 * CHUNK + k * STEP)
        for s in ring
        for p in range(slot_chunks // 2)
        for k in range(4)
    }
    assert seen["copy"] <= copies | rope_k
    assert seen["copy"] & copies
    assert bool(seen["copy"] & rope_k) == (d_qk > 512)
