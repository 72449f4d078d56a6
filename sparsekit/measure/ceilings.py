"""What the GPU can do now: a large copy and a large matmul, on random data."""

from __future__ import annotations

import statistics

import torch

from sparsekit.measure.timer import Call, Timer
from sparsekit.model.bench import Ceilings

_MATMUL_SIZE = 8192
_COPY_BYTES = 4 << 30
_WARM, _SAMPLES = 5, 21


def measure_ceilings(timer: Timer, device: torch.device) -> Ceilings:
    """The rates of a bf16 matmul of 8192^3 and of a copy of 4 GiB, or of what there is room for."""
    size, copy_bytes = _MATMUL_SIZE, _COPY_BYTES
    while 8 * size * size > timer.free_bytes():
        size //= 2
    while 4 * copy_bytes > timer.free_bytes():
        copy_bytes //= 2
    a, b = (_normal((size, size), device) for _ in range(2))
    c = torch.empty_like(a)
    matmul_s = _median_s(timer, lambda: torch.matmul(a, b, out=c))
    source = _normal((copy_bytes // 2,), device)
    target = torch.empty_like(source)
    copy_s = _median_s(timer, lambda: target.copy_(source))
    return Ceilings(2 * size**3 / matmul_s / 1e12, 2 * copy_bytes / copy_s / 1e9)


def _normal(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_()


def _median_s(timer: Timer, work: Call) -> float:
    times = [timer.elapsed_s(work) for _ in range(_WARM + _SAMPLES)]
    return statistics.median(times[_WARM:])
