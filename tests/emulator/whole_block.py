"""Running the body of a kernel as one block, with arrays for memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsekit.emulator import Memory, Report, launch, load

HEADER = ".version 9.0\n.target sm_120a\n.address_size 64\n"
REGISTERS = """
 .reg .pred p<16>; .reg .b16 h<16>; .reg .b32 r<64>; .reg .f32 f<32>; .reg .b64 l<32>;
 .reg .b32 tid, lane, warp, cta;
"""


def text_of(body: str, pointers: Sequence[str], module: str = "", shared: str = "") -> str:
    """An entry whose 64-bit parameters are loaded into registers of their names."""
    params = ", ".join(f".param .u64 {name}_param" for name in pointers)
    declared = f".reg .b64 {', '.join(pointers)};" if pointers else ""
    loads = " ".join(f"ld.param.u64 {name}, [{name}_param];" for name in pointers)
    return (
        f"{HEADER}{module}\n.visible .entry test({params})\n{{{REGISTERS}{declared}\n{shared}\n"
        f" {loads}\n mov.u32 tid, %tid.x; mov.u32 lane, %laneid; mov.u32 warp, %warpid;\n"
        f" mov.u32 cta, %ctaid.x;\n{body}\n ret;\n}}\n"
    )


def run_block(
    body: str, arrays: dict[str, Any], threads: int = 32, *, module: str = "", shared: str = "",
    grid: int = 1, shared_bytes: int = 0, **options: Any,
) -> tuple[Report, dict[str, np.ndarray]]:  # fmt: skip
    """The report, and what the arrays (or the uninitialised memory of so many bytes) hold after.

    An array may be given by a function that makes a TensorMap from the allocations before it.
    """
    text = text_of(body, list(arrays), module, shared)
    memory = Memory()
    places: dict[str, Any] = {}
    for name, content in arrays.items():
        if callable(content):  # a tensor map of an array before it
            content = np.frombuffer(content(places).packed(), np.uint8)
        places[name] = memory.allocate(content, name)
    report = launch(
        load(text), "test", (grid, 1, 1), threads, list(places.values()), memory,
        shared_bytes=shared_bytes, **options,
    )  # fmt: skip
    after = {}
    for name, place in places.items():
        content = arrays[name]
        kind = content.dtype if isinstance(content, np.ndarray) else np.uint32
        if place.size_bytes % np.dtype(kind).itemsize:
            kind = np.uint8
        after[name] = memory.read(place, kind)
    return report, after


def clean(body: str, arrays: dict[str, Any], threads: int = 32, **options: Any) -> dict[str, Any]:
    report, after = run_block(body, arrays, threads, **options)
    report.raise_faults()
    return after


def kinds(body: str, arrays: dict[str, Any], threads: int = 32, **options: Any) -> list[str]:
    """The kinds of the faults of a run."""
    return [f.kind for f in run_block(body, arrays, threads, **options)[0].faults]
