"""One form of a tensor-core instruction on a GPU and in the emulator, data set by data set."""

from __future__ import annotations

import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tile_bits
import tile_data
import torch
from accumulation import accumulate, models_of
from sides import Emulator, Machine
from tile_forms import ENTRY, Form, MmaForm, Tiles, WgmmaForm

_SAMPLES = 4  # differing elements that a finding shows
_MODEL_ELEMENTS = 4096  # of a data set, for the models, which are slow
_KEPT_ELEMENTS = 32768  # of a data set, in a file


def exact_tiles(form: Form, tiles: Tiles) -> np.ndarray:
    """Stands for a GPU where there is none: sums in doubles, rounded once."""
    with np.errstate(all="ignore"):
        value, _ = form.exact(tiles)
        if isinstance(form, MmaForm) and form.saturating:
            value = np.clip(value, -(2.0**31), 2.0**31 - 1)
        return tile_bits.encode(value, form.d)


def compare_form(
    form: MmaForm | WgmmaForm, count: int, gpu: Machine | None, keep: Path | None = None
) -> list[dict[str, Any]]:
    """A finding for each data set. gpu: None to take exact sums in its place. keep: a folder for
    some of the GPU's results."""
    return [_compare(form, kind, count, gpu, keep) for kind in tile_data.kinds_of(form)]


def _compare(
    form: MmaForm | WgmmaForm, kind: str, count: int, gpu: Machine | None, keep: Path | None
) -> dict[str, Any]:
    tiles = tile_data.make_tiles(form, kind, count)
    memory = form.memory(tiles)
    emulated = form.result(Emulator().run(form.text, ENTRY, form.threads, memory, form.out_words))
    if gpu is None:
        found = exact_tiles(form, tiles)
    else:
        found = form.result(gpu.run(form.text, ENTRY, form.threads, memory, form.out_words))
        if keep is not None:
            _keep(keep, form, kind, found)
    finding = {
        "what": "tile", "subject": form.name, "data": kind, "tiles": count,
        "assembler": gpu.assembler(form.text) if gpu else None,
        **_difference(form, tiles, found, emulated),
    }  # fmt: skip
    bound = 0.0 if kind == tile_data.INTEGRAL else tile_data.bound_of(form)
    finding["bound"] = bound
    if kind == tile_data.INTEGRAL:
        # Doubles do not tell which sign a sum of zeros has that was multiplied by a factor.
        forgiven = finding["zero_signs"] if gpu is None else 0
        finding["ok"] = finding["different_bits"] == forgiven
    elif kind == tile_data.RANDOM:
        finding["ok"] = finding["other_class"] == 0 and finding["worst_relative"] <= bound
    else:
        finding["ok"] = None  # recorded: neither the ISA nor the documentation promises anything
    if kind == tile_data.RANDOM and gpu is not None:
        finding["models"] = _models(form, tiles, found)
    return finding


def _difference(
    form: Form, tiles: Tiles, found: np.ndarray, emulated: np.ndarray
) -> dict[str, Any]:
    """What differs between two results in bits. Relative: to the sum of the terms' magnitudes."""
    g, e = tile_bits.decode(found, form.d), tile_bits.decode(emulated, form.d)
    with np.errstate(all="ignore"):
        exact, size = form.exact(tiles)
    both = np.isfinite(g) & np.isfinite(e)
    with np.errstate(all="ignore"):
        apart, from_exact, emulated_from_exact = g - e, g - exact, e - exact
    same_class = both | (np.isnan(g) & np.isnan(e)) | (g == e)
    differs = found != emulated
    told: dict[str, Any] = {
        "elements": int(g.size), "different_bits": int(differs.sum()),
        "other_class": int((~same_class).sum()),
        "zero_signs": int((differs & (g == 0) & (e == 0)).sum()),
        "nan_bits": sorted({f"0x{int(bits):x}" for bits in np.unique(found[np.isnan(g)])})[:8],
        "worst_relative": _worst(apart, size, both),
        "gpu_worst_relative": _worst(from_exact, size, both & np.isfinite(exact)),
        "emulator_worst_relative": _worst(emulated_from_exact, size, both & np.isfinite(exact)),
    }  # fmt: skip
    if form.d != "s32":
        gap, beyond = bf16_ulps(g, e, both)
        told |= {"worst_bf16_ulp": gap, "beyond_2_bf16_ulp": beyond}
    worst = np.argwhere(differs & ~same_class)
    if not len(worst):
        excess = np.where(differs & both, np.abs(apart) / np.maximum(size, 1e-300), -1.0)
        worst = np.argwhere(excess == excess.max()) if differs.any() else worst
    told["samples"] = [
        {
            "at": [int(i) for i in at], "gpu": f"0x{int(found[tuple(at)]):x}",
            "emulator": f"0x{int(emulated[tuple(at)]):x}", "exact": repr(float(exact[tuple(at)])),
        }
        for at in worst[:_SAMPLES]
    ]  # fmt: skip
    return told


def _worst(difference: np.ndarray, size: np.ndarray, where: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        relative = np.abs(difference[where]) / np.maximum(size[where], 2.0**-149)
    relative = relative[np.isfinite(relative)]
    return float(relative.max()) if relative.size else 0.0


def bf16_ulps(g: np.ndarray, e: np.ndarray, where: np.ndarray) -> tuple[int, int]:
    """The most steps of bf16 between two values, each rounded to it, and how many are beyond 2."""
    places = []
    for values in (g, e):
        single = torch.from_numpy(np.ascontiguousarray(values[where], np.float32))
        bits = single.to(torch.bfloat16).view(torch.int16).numpy().astype(np.int64)
        places.append(np.where(bits < 0, -(bits & 0x7FFF), bits))
    gap = np.abs(places[0] - places[1])
    return (int(gap.max()), int((gap > 2).sum())) if gap.size else (0, 0)


def _models(form: Form, tiles: Tiles, found: np.ndarray) -> list[dict[str, Any]]:
    """How many of a GPU's results each published model gives to the bit, the best first."""
    _, m, n = found.shape
    rows = min(m, _MODEL_ELEMENTS // (2 * n))
    count = max(2, _MODEL_ELEMENTS // (m * n))
    some = Tiles(tiles.a[:count, :rows], tiles.b[:count], tiles.c[:count, :rows])
    wanted = found[:count, :rows]
    told = [
        {
            **asdict(model), "of": int(wanted.size),
            "equal": int((accumulate(form, model, some) == wanted).sum()),
        }
        for model in models_of(form)
    ]  # fmt: skip
    return sorted(told, key=lambda model: -model["equal"])[:3]


def _keep(folder: Path, form: Form, kind: str, found: np.ndarray) -> None:
    """Write some of a GPU's results, for models that are found later; the data is made anew."""
    count = max(1, _KEPT_ELEMENTS // found[0].size)
    file = folder / f"{zlib.crc32(form.name.encode()):08x}-{kind}.npz"
    np.savez_compressed(file, form=form.name, tiles=len(found), found=found[:count])
