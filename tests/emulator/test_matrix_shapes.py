"""The shapes and operands of mma and wgmma: as the PTX ISA lists them, and as ptxas takes them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from sparsekit.emulator import UnsupportedError, load

VERSION = "8.7"
REGISTERS = ".reg .pred p; .reg .b32 r<192>; .reg .f32 f<192>; .reg .b64 l<2>;"
A_REGISTERS, B_REGISTERS, C_REGISTERS = 140, 160, 180  # where operands start; D starts at 0
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
FLOATS, INTEGERS = ("e4m3", "e5m2"), ("s8", "u8")
TYPES = [
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    *((d, a, b) for d in ("f32", "f16") for a in FLOATS for b in FLOATS),
    *(("s32", a, b) for a in INTEGERS for b in INTEGERS),
]  # fmt: skip
"""Those that wgmma has and the emulator models: all but single bits."""
NO_TYPES = [
    ("f16", "bf16", "bf16"), ("f16", "tf32", "tf32"), ("bf16", "bf16", "bf16"),
    ("f32", "f16", "bf16"), ("f32", "e4m3", "s8"), ("f32", "s8", "s8"), ("s32", "f16", "f16"),
    ("s32", "e4m3", "e4m3"),
]  # fmt: skip
WIDTHS = range(8, 257, 8)
INTEGER_WIDTHS = [8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256]
NO_WIDTHS = [4, 12, 20, 264]
DEPTHS = (4, 8, 16, 32, 64)


def vector(kind: str, first: int, count: int) -> str:
    letter = "f" if kind == "f32" else "r"
    return "{" + ", ".join(f"{letter}{first + i}" for i in range(count)) + "}"


def flags_of(a: str, in_registers: bool) -> str:
    """The factors and transpositions that wgmma takes for a type."""
    if a in INTEGERS:
        return ""
    return ", 1, 1" + (BYTES[a] == 2) * (", 0" if in_registers else ", 0, 0")


def wgmma(d, a, b, n, k, in_registers=False, flags=None, more=0, modifier=""):
    """The instruction; more: registers of D beyond those of the shape."""
    count = max(n // (4 if d in ("f16", "bf16") else 2) + more, 1)
    left = vector("b32", A_REGISTERS, 4) if in_registers else "l0"
    flags = flags_of(a, in_registers) if flags is None else flags
    return (
        f"wgmma.mma_async.sync.aligned.m64n{n}k{k}{modifier}.{d}.{a}.{b} "
        f"{vector(d, 0, count)}, {left}, l1, p{flags};"
    )


def mma(d, a, b, k, kind="", modifier="", more=0):
    """mma.sync.m16n8; more: registers of A beyond those of the shape."""
    words = k * BYTES[a] // 8
    accumulators = 2 if d == "f16" else 4
    return (
        f"mma.sync.aligned.m16n8k{k}.row.col{kind}{modifier}.{d}.{a}.{b}.{d} "
        f"{vector(d, 0, accumulators)}, {vector('b32', A_REGISTERS, max(words, 1) + more)}, "
        f"{vector('b32', B_REGISTERS, max(words // 2, 1))}, {vector(d, C_REGISTERS, accumulators)};"
    )


def text_of(lines: Sequence[str], target: str) -> str:
    """A kernel whose first line of PTX is the first of these."""
    head = f".version {VERSION} .target {target} .address_size 64 .visible .entry test() {{ "
    return head + REGISTERS + " " + "\n".join(lines) + "\nret; }\n"


@cache
def is_taken(line: str, target: str) -> bool:
    """Whether the emulator has a model of an instruction, its operands included."""
    try:
        code, translations = load(text_of([line], target)).prepared("test")
        for block in code.blocks:
            translations.of(block.number, False)
    except UnsupportedError:
        return False
    return True


def ptxas_files() -> Iterator[Path]:
    spec = find_spec("triton")
    for folder in (spec.submodule_search_locations if spec else None) or []:
        yield from sorted(Path(folder, "backends/nvidia/bin").glob("ptxas*"))


@pytest.fixture(params=["ptxas", "ptxas-blackwell"])
def ptxas(request) -> Path:
    found = {file.name: file for file in ptxas_files()}
    if request.param not in found:
        pytest.skip(f"no {request.param} in the installed Triton")
    return found[request.param]


def assembled(
    ptxas: Path, lines: Iterable[str], target: str, folder: Path,
    text_of: Callable[[Sequence[str], str], str] = text_of,
) -> set[str]:  # fmt: skip
    """Those that ptxas takes.

    It tells all that it refuses at one stage, and stops there; a line that its last stage refuses
    keeps it from generating code, which would take a minute.
    """
    left = list(lines)
    while True:
        file = folder / "lines.ptx"
        file.write_text(text_of([*left, mma("f32", "tf32", "tf32", 16)], target))
        command = [str(ptxas), "--gpu-name", target, str(file), "-o", str(folder / "cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        refused = {int(n) for n in re.findall(r"line (\d+); error", done.stderr)}
        assert refused, done.stderr[-1000:]
        if refused == {len(left) + 1}:
            return set(left)
        left = [line for number, line in enumerate(left, 1) if number not in refused]


def wgmma_lines() -> Iterator[str]:
    """Every type in every width, every type in every depth, and operands right and wrong."""
    for d, a, b in TYPES:
        k = 32 // BYTES[a]
        for in_registers in (False, True):
            for n in (*WIDTHS, *NO_WIDTHS):
                yield wgmma(d, a, b, n, k, in_registers)
            for flags in ("", ", 1, 1", ", 1, 1, 0", ", 1, 1, 1, 1", ", -1, 1, 1, 0", ", 1, 2"):
                yield wgmma(d, a, b, 16, k, in_registers, flags)
        for more in (-1, 1):
            yield wgmma(d, a, b, 16, k, more=more)
        yield wgmma(d, a, b, 16, k, modifier=".satfinite")
    for d, a, b in (*TYPES, *NO_TYPES):
        for k in DEPTHS:
            for n in (8, 40):
                yield wgmma(d, a, b, n, k)


def mma_lines() -> Iterator[str]:
    for d, a, b in (*TYPES, *NO_TYPES):
        for k in DEPTHS:
            for kind in ("", ".kind::f8f6f4"):
                yield mma(d, a, b, k, kind)
            yield mma(d, a, b, k, modifier=".satfinite")
            yield mma(d, a, b, k, more=1)


def test_widths_of_wgmma():
    for d, a, b in TYPES:
        taken = [
            n for n in (*WIDTHS, *NO_WIDTHS)
            if is_taken(wgmma(d, a, b, n, 32 // BYTES[a]), "sm_90a")
        ]  # fmt: skip
        assert taken == list(INTEGER_WIDTHS if a in INTEGERS else WIDTHS), (d, a, b)


def test_wgmma_is_taken_where_ptxas_takes_it(ptxas, tmp_path):
    lines = list(dict.fromkeys(wgmma_lines()))
    wanted = assembled(ptxas, lines, "sm_90a", tmp_path)
    assert {line for line in lines if is_taken(line, "sm_90a")} == wanted


def test_depths_of_mma():
    for d, a, b in TYPES:
        if d == "f16" and a in FLOATS:
            continue  # not modelled
        taken = [k for k in DEPTHS if is_taken(mma(d, a, b, k), "sm_120a")]
        assert taken == [16 // BYTES[a], 32 // BYTES[a]]
        of_kind = [k for k in DEPTHS if is_taken(mma(d, a, b, k, ".kind::f8f6f4"), "sm_120a")]
        assert of_kind == ([32] if a in FLOATS else [])


def test_mma_is_taken_where_ptxas_takes_it(ptxas, tmp_path):
    lines = list(dict.fromkeys(mma_lines()))
    taken = {line for line in lines if is_taken(line, "sm_120a")}
    more = assembled(ptxas, lines, "sm_120a", tmp_path) - taken
    assert taken <= assembled(ptxas, taken, "sm_120a", tmp_path)
    # Sums in half precision of 8-bit floats are not modelled; the ISA has no k16 of f8f6f4.
    assert all(re.search(r"\.f16\.e\dm\d\.|m16n8k16.*f8f6f4", line) for line in more), more
