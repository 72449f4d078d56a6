"""Running PTX text on vectors of bit patterns: one thread per element, results as bit patterns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsekit.emulator import Memory, Report, launch, load

HEADER = ".version 9.0\n.target sm_120a\n.address_size 64\n"
BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip
_THREADS = 128


def register_type(kind: str) -> str:
    if kind in ("f32", "f64", "pred", "b128"):
        return kind
    return f"b{max(8 * BYTES[kind], 16)}"


def kernel(body: str, inputs: Sequence[str], outputs: Sequence[str], declare: str = "") -> str:
    """A kernel whose thread i loads a, b, c, ... from element i, runs body, stores d0, d1, ..."""
    names = [f"in{k}" for k in range(len(inputs))] + [f"out{k}" for k in range(len(outputs))]
    params = ",\n ".join([f".param .u64 {n}" for n in names] + [".param .u32 count"])
    lines = [".reg .b32 index, total, where, wide;", ".reg .b64 base;", ".reg .pred past;"]
    lines += [f".reg .{register_type(t)} {chr(97 + k)};" for k, t in enumerate(inputs)]
    lines += [f".reg .{register_type(t)} d{k};" for k, t in enumerate(outputs)]
    lines += [declare, "mov.u32 where, %ctaid.x;", "mov.u32 index, %tid.x;"]
    lines += [f"mad.lo.u32 index, where, {_THREADS}, index;", "ld.param.u32 total, [count];"]
    lines += ["setp.ge.u32 past, index, total;", "@past exit;"]
    for k, kind in enumerate(inputs):
        name = chr(97 + k)
        lines += _address(f"in{k}", kind)
        if kind == "pred":
            lines += ["ld.global.u8 wide, [base];", f"setp.ne.u32 {name}, wide, 0;"]
        else:
            lines += [f"ld.global.{_memory_type(kind)} {name}, [base];"]
    lines += [body]
    for k, kind in enumerate(outputs):
        lines += _address(f"out{k}", kind)
        if kind == "pred":
            lines += [f"selp.u32 wide, 1, 0, d{k};", "st.global.u8 [base], wide;"]
        else:
            lines += [f"st.global.{_memory_type(kind)} [base], d{k};"]
    text = "\n ".join(lines)
    return f"{HEADER}.visible .entry test(\n {params})\n{{\n {text}\n ret;\n}}\n"


def _memory_type(kind: str) -> str:
    return kind if kind in ("f32", "f64") else f"b{8 * BYTES[kind]}"


def _address(param: str, kind: str) -> list[str]:
    return [
        f"ld.param.u64 base, [{param}];",
        "cvta.to.global.u64 base, base;",
        f"mad.wide.u32 base, index, {BYTES[kind]}, base;",
    ]


def to_array(values: Sequence[int], kind: str) -> np.ndarray:
    data = b"".join((v % 256 ** BYTES[kind]).to_bytes(BYTES[kind], "little") for v in values)
    return np.frombuffer(data, np.uint8)


def from_array(data: np.ndarray, kind: str) -> list[int]:
    size = BYTES[kind]
    raw = data.tobytes()
    return [int.from_bytes(raw[i : i + size], "little") for i in range(0, len(raw), size)]


def run(
    body: str, inputs: Sequence[tuple[str, Sequence[int]]], outputs: Sequence[str],
    declare: str = "", **options: object,
) -> list[list[int]]:  # fmt: skip
    """The bit patterns of each output. inputs: (type, bit patterns)."""
    report, results = run_reported(body, inputs, outputs, declare, **options)
    report.raise_faults()
    return results


def run_reported(
    body: str, inputs: Sequence[tuple[str, Sequence[int]]], outputs: Sequence[str],
    declare: str = "", **options: object,
) -> tuple[Report, list[list[int]]]:  # fmt: skip
    text = kernel(body, [kind for kind, _ in inputs], outputs, declare)
    count = len(inputs[0][1])
    memory = Memory()
    params: list[object] = [
        memory.allocate(to_array(v, k), f"in{i}") for i, (k, v) in enumerate(inputs)
    ]
    results = [memory.allocate(count * BYTES[k], f"out{i}") for i, k in enumerate(outputs)]
    report = launch(
        load(text), "test", (-(-count // _THREADS), 1, 1), _THREADS, [*params, *results, count],
        memory, **options,
    )  # fmt: skip
    return report, [
        from_array(memory.read(r, np.uint8), k) for r, k in zip(results, outputs, strict=True)
    ]
