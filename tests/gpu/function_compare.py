"""One scalar instruction on a GPU and in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
from function_forms import ENTRY, THREADS, FunctionForm, operands
from sides import Emulator, Machine

from sparsekit.emulator.faults import UnsupportedError
from sparsekit.errors import CompileError, GpuError

_SAMPLES = 4
_LAYOUTS = {"f16x2": (5, 10), "bf16x2": (8, 7), "f32": (8, 23), "f64 upper": (11, 20)}
"""Bits of exponent and mantissa; what is not here is no floating number."""


def compare_function(form: FunctionForm, gpu: Machine | None) -> dict[str, Any]:
    """A finding. gpu: None to take the emulator for both, which shows that the text runs."""
    if form.refused:
        return _refusal(form, gpu)
    inputs = operands()
    emulated = Emulator().run(form.text, ENTRY, THREADS, [inputs], 1)[..., 0].reshape(-1)
    found = emulated
    if gpu is not None:
        found = gpu.run(form.text, ENTRY, THREADS, [inputs], 1)[..., 0].reshape(-1)
    g, e = _elements(form.result, found), _elements(form.result, emulated)
    layout = _LAYOUTS.get(form.result)
    different = g != e
    nan = _is_nan(g, layout) & _is_nan(e, layout)
    other_class = _is_nan(g, layout) != _is_nan(e, layout)
    wrong = different & ~nan
    ulp = np.where(wrong & ~other_class, np.abs(_ordered(g, layout) - _ordered(e, layout)), 0)
    worst = np.argsort(-np.where(other_class, 1 << 40, ulp))[:_SAMPLES]
    a, b, c = inputs.reshape(-1, 3).T
    per_word = len(g) // len(a)
    return {
        "what": "function", "subject": form.name, "elements": len(g),
        "assembler": gpu.assembler(form.text) if gpu else None,
        "different_bits": int(wrong.sum()), "nan_bits_differ": int((different & nan).sum()),
        "other_class": int(other_class.sum()), "worst_ulp": int(ulp.max()),
        "ulps": {str(u): int((ulp == u).sum()) for u in range(1, 5)},
        "samples": [
            {
                "operands": [f"0x{int(x[i // per_word]):x}" for x in (a, b, c)],
                "gpu": f"0x{int(g[i]):x}", "emulator": f"0x{int(e[i]):x}",
            }
            for i in worst.tolist() if wrong[i]
        ],
        "ok": not wrong.any() if form.exact else None,
    }  # fmt: skip


def _refusal(form: FunctionForm, gpu: Machine | None) -> dict[str, Any]:
    """The finding of an instruction that both are to refuse."""
    taken = []
    for machine in (Emulator(), gpu):
        try:
            if machine is not None:
                machine.run(form.text, ENTRY, THREADS, [operands()], 1)
                taken.append(type(machine).__name__)
        except (UnsupportedError, CompileError, GpuError):
            pass
    return {
        "what": "function", "subject": form.name, "elements": 0, "taken_by": taken,
        "different_bits": 0, "other_class": 0, "worst_ulp": 0, "ok": not taken,
    }  # fmt: skip


def _elements(kind: str, words: np.ndarray) -> np.ndarray:
    cells = words.view(np.uint16) if kind.endswith("x2") else words
    found: np.ndarray = cells.astype(np.int64)
    return found


def _is_nan(bits: np.ndarray, layout: tuple[int, int] | None) -> np.ndarray:
    if layout is None:
        return np.zeros(bits.shape, np.bool_)
    exponent, mantissa = layout
    top = (1 << exponent) - 1
    found: np.ndarray = (bits & (1 << exponent + mantissa) - 1) > top << mantissa
    return found


def _ordered(bits: np.ndarray, layout: tuple[int, int] | None) -> np.ndarray:
    """Integers in the order of the floats that they are the bits of."""
    if layout is None:
        return bits
    sign = 1 << sum(layout)
    return np.where(bits & sign, -(bits & sign - 1), bits)
