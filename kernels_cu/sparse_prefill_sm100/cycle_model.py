"""Cycle model of sparse_prefill_sm100 on a B200: what one tile costs each part of an SM.

`python kernels_cu/sparse_prefill_sm100/cycle_model.py` prints the tables of README.md. Nothing in
it was measured with this kernel. A tile is 64 rows for 64 heads of one block; times in cycles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# The chip. Tensor rate: seed 1's ncu figure, 1024 busy cycles for a tile at d_qk 512.
SMS = 148
CLOCK_HZ = 1.85e9  # an assumption: no source tells at which clock the figures below were taken
MAC_PER_CYCLE = 64 * 64 * (512 + 512) / 1024
SHARED_BYTES_PER_CYCLE = 128
# L2 to one SM: at least what FlashMLA draws at 1450 TFLOP/s, 11.3 TB/s over all SMs.
L2_BYTES_PER_CYCLE = 11.3e12 / SMS / CLOCK_HZ
L2_LATENCY = 800  # from a gather's issue to its last byte, beyond its bytes; an assumption
# Static SASS of one tile of a softmax warp (NVRTC 13.0.88, results left out); a scheduler has one.
SOFTMAX_ISSUE = 540
# From S to P: that, six meetings of two warps, four trips through shared or tensor memory: a guess.
SOFTMAX_CHAIN = SOFTMAX_ISSUE + 6 * 40 + 4 * 80
# Between two items: P V of the next waits until O is read (8 loads of 32 columns, 64 KB stored),
# under Q K^T of its second tile.
ITEM_CYCLES = 700
SHARE_OF_PRODUCTS = 0.6  # of the shared-memory port while a product runs beside gather and softmax
SHARED_BYTES = 232448  # of a block
LEFT_OUT = 1.10  # bank conflicts, hand-overs, jitter: a guess

# Few heads as the N side: a maximum over the 32 lanes of a warp, 5 shuffles and comparisons; bytes
# of maxima and barriers.
MAXIMUM_ISSUE = 10
SWAPPED_REST_BYTES = 1024
SOFTMAX_WARPS = 4
FEW_HEADS = (8, 16, 32)

ROWS = HEADS = 64
D_V = 512
LANES = 128
BF16, FP32 = 2, 4


def ring_cycles(shared_bytes: dict[str, float], stages: float) -> float:
    """So that a tile has landed when its turn comes, every slot being in use.

    Tile i + stages is gathered from the middle of P V of tile i to its own Q K^T: stages - 1 tiles
    less Q K^T and half of P V, which follow each other.
    """
    q_k, p_v = (shared_bytes[p] / SHARED_BYTES_PER_CYCLE / SHARE_OF_PRODUCTS for p in "KV")
    l2 = shared_bytes["gather"] / L2_BYTES_PER_CYCLE
    return (L2_LATENCY + l2 + q_k + p_v / 2) / (stages - 1)


@dataclass(frozen=True)
class Shape:
    """ctas: blocks that share an item; stages: slots of the ring."""

    ctas: int
    d_qk: int
    stages: int

    @property
    def tensor(self) -> float:
        return ROWS * HEADS * (self.d_qk + D_V) / MAC_PER_CYCLE

    @property
    def gathered_bytes(self) -> float:
        return ROWS * self.d_qk * BF16 / self.ctas

    @property
    def shared_bytes(self) -> dict[str, float]:
        half_of_s = LANES * ROWS // 2 * FP32
        return {
            "gather": self.gathered_bytes,
            "K": self.gathered_bytes,
            "V": ROWS * D_V * BF16 / self.ctas,
            "S": 2 * half_of_s,  # half of each lane's sums to the other lane, written and read
            "P": 2 * LANES * ROWS // 2 * BF16,
            "maxima": 2 * LANES * FP32,
        }

    @property
    def shared(self) -> float:
        return sum(self.shared_bytes.values()) / SHARED_BYTES_PER_CYCLE

    @property
    def l2(self) -> float:
        return self.gathered_bytes / L2_BYTES_PER_CYCLE

    @property
    def ring(self) -> float:
        return ring_cycles(self.shared_bytes, self.stages)

    @property
    def parts(self) -> dict[str, float]:
        return {
            "tensor": self.tensor, "shared memory": self.shared, "L2": self.l2, "ring": self.ring,
            "softmax, S to P": SOFTMAX_CHAIN,
        }  # fmt: skip

    @property
    def tile(self) -> float:
        return max(self.parts.values())


@dataclass(frozen=True)
class Swapped:
    """Few heads as the N side, of which no kernel exists: S^T = K Q^T, O^T += V^T P^T.

    K and V are the A of their products and cross the port as often as when they are B. Q and P are
    B, which only shared memory can be: Q lies there for the whole item, beside the ring.
    """

    heads: int
    d_qk: int

    @property
    def stages(self) -> float:
        """In halves, as slots are gathered anew."""
        q, p = self.heads * self.d_qk * BF16, self.heads * ROWS * BF16
        half = ROWS // 2 * self.d_qk * BF16
        return (SHARED_BYTES - q - p - SWAPPED_REST_BYTES) // half / 2

    @property
    def tensor(self) -> float:
        """S^T has M = 64, which takes the time of 128; O^T has 4 x 128."""
        return ROWS * self.heads * (2 * self.d_qk + D_V) / MAC_PER_CYCLE

    @property
    def shared_bytes(self) -> dict[str, float]:
        p = ROWS * self.heads * BF16
        return {
            "gather": ROWS * self.d_qk * BF16,
            "K": (ROWS + self.heads) * self.d_qk * BF16,  # with Q
            "V": ROWS * D_V * BF16 + D_V // LANES * p,  # with P, for each 128 rows of O^T
            "P": p,
            "maxima": 2 * SOFTMAX_WARPS * self.heads * FP32,
        }

    @property
    def softmax(self) -> float:
        """A lane has a token: the heads' share of SOFTMAX_ISSUE, and each maximum over lanes."""
        issue = SOFTMAX_ISSUE * self.heads / HEADS + self.heads * MAXIMUM_ISSUE
        return issue + 2 * 40 + 4 * 80

    @property
    def parts(self) -> dict[str, float]:
        return {
            "tensor": self.tensor,
            "shared memory": sum(self.shared_bytes.values()) / SHARED_BYTES_PER_CYCLE,
            "L2": self.shared_bytes["gather"] / L2_BYTES_PER_CYCLE,
            "ring": ring_cycles(self.shared_bytes, self.stages),
            "softmax, S to P": self.softmax,
        }  # fmt: skip

    @property
    def tile(self) -> float:
        return max(self.parts.values())


ONE = {512: Shape(1, 512, 3), 576: Shape(1, 576, 3)}
PAIR = {512: Shape(2, 512, 6), 576: Shape(2, 576, 5)}


@dataclass(frozen=True)
class Workload:
    """tiles: emitted for an item, on average. known: what is published for FlashMLA on a B200."""

    name: str
    shape: Shape
    s_q: int
    h_q: int
    tiles: float
    valid: float  # columns of a token, on average
    known_ms: float | None

    @property
    def items_of_a_block(self) -> int:
        items = self.s_q * math.ceil(self.h_q / (HEADS * self.shape.ctas))
        return math.ceil(items / (SMS // self.shape.ctas))

    def seconds(self, factor: float) -> float:
        cycles = self.items_of_a_block * (self.tiles * self.shape.tile * factor + ITEM_CYCLES)
        return cycles / CLOCK_HZ

    def tflops(self, seconds: float) -> float:
        return 2 * self.s_q * self.h_q * self.valid * (self.shape.d_qk + D_V) / seconds / 1e12


def ramp() -> list[int]:
    """Valid columns of seed 1's rows."""
    return [min(row // 2, 1024) + 3 for row in range(8192)]


def workloads() -> list[Workload]:
    valid = ramp()
    mean_valid = sum(valid) / len(valid)
    mean_tiles = sum(math.ceil(n / ROWS) for n in valid) / len(valid)
    return [
        Workload("seed1_full", ONE[512], 8192, 64, 18, 1152, 1.280),
        Workload("seed1_full_length", ONE[512], 8192, 64, 18, 1152, 1.279),
        Workload("seed1_ramp, noskip", ONE[512], 8192, 64, 18, mean_valid, 1.248),
        Workload("seed1_ramp", ONE[512], 8192, 64, mean_tiles, mean_valid, 1.144),
        Workload("seed1_ramp_length", ONE[512], 8192, 64, mean_tiles, mean_valid, 1.101),
        Workload("v32 (h_q 128, d_qk 576, topk 2048)", PAIR[576], 4096, 128, 32, 2048, 1.611),
        Workload("the same, one block an item", ONE[576], 4096, 128, 32, 2048, 1.611),
        Workload("h128_k512", PAIR[512], 4096, 128, 8, 512, None),
        Workload("h64_k512", ONE[512], 4096, 64, 8, 512, None),
    ]


def table(head: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * w for w in widths], *rows]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def tile_table() -> str:
    shapes = {f"one, {d}": s for d, s in ONE.items()} | {f"pair, {d}": s for d, s in PAIR.items()}
    rows = [[part, *(f"{s.parts[part]:.0f}" for s in shapes.values())] for part in ONE[512].parts]
    rows.append(["a tile", *(f"**{s.tile:.0f}**" for s in shapes.values())])
    return table(["cycles, modelled", *shapes], rows)


def time_table() -> str:
    rows = []
    for w in workloads():
        floor, expected = w.seconds(1.0), w.seconds(LEFT_OUT)
        known = "–" if w.known_ms is None else f"{w.known_ms:.3f}"
        times = [f"{seconds * 1e3:.2f}" for seconds in (floor, expected)]
        rows.append([w.name, *times, f"{w.tflops(expected):.0f}", known])
    head = ["workload", "model, floor, ms", "model, ms", "model, TFLOP/s", "FlashMLA on B200, ms"]
    return table(head, rows)


def few_heads_table() -> str:
    """Few heads, padded to 64 as the kernel does, or swapped to be the N side."""
    rows = []
    for d_qk, padded in ONE.items():
        for heads in FEW_HEADS:
            swapped = Swapped(heads, d_qk)
            limit = max(swapped.parts, key=lambda part: swapped.parts[part])
            rows.append([
                f"{heads}, {d_qk}", f"{padded.tile:.0f}", f"{swapped.tile:.0f}",
                f"{limit}, {swapped.stages:g} slots", f"{padded.tile / swapped.tile:.2f}",
            ])  # fmt: skip
    head = ["h_q, d_qk", "padded, cycles a tile", "swapped", "which bounds it", "padded / swapped"]
    return table(head, rows)


def tables() -> str:
    return "\n\n".join((tile_table(), time_table(), few_heads_table()))


if __name__ == "__main__":
    print(tables())
