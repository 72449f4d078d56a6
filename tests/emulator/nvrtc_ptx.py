"""CUDA sources to PTX for the tests, with the NVRTC that the project pins."""

from __future__ import annotations

from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "kernels"
OWN_HEADERS = Path(__file__).parents[2] / "kernels_cu" / "include"


@cache
def compiled(name: str, arch: str, *edits: tuple[str, str]) -> str:
    """The PTX of tests/emulator/kernels/NAME for an arch, `sm_90a`; edits: (text, instead)."""
    from cuda.bindings import nvrtc

    source = (SOURCES / name).read_text()
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    headers = {p.name: p.read_bytes() for p in SOURCES.glob("*.cuh")}
    headers |= {str(p.relative_to(OWN_HEADERS)): p.read_bytes() for p in OWN_HEADERS.rglob("*.cuh")}
    result, program = nvrtc.nvrtcCreateProgram(
        source.encode(), name.encode(), len(headers), list(headers.values()),
        [header.encode() for header in headers],
    )  # fmt: skip
    assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS
    options = [f"--gpu-architecture={arch}", "--std=c++17"]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.decode())
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = b" " * size
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.rstrip(b"\0").decode()
