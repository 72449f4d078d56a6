"""CUDA to cubin through NVRTC, in a worker process. No GPU, driver or host compiler takes part.

Sources: NVRTC documentation; `cuda.bindings.nvrtc`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sparsekit.aot.elf import LAUNCH_FACTS, read_cubin
from sparsekit.aot.ptxas_log import remarks, spills
from sparsekit.aot.record import check_ptx, entry_record
from sparsekit.errors import CompileError, ToolchainError

(_DYNAMIC_SHARED,) = LAUNCH_FACTS


@cache
def loaded_nvrtc(library: str) -> Nvrtc:
    """The library at that path, loaded once per process."""
    return Nvrtc(library)


class Nvrtc:
    """One NVRTC library."""

    def __init__(self, library: str) -> None:
        # Loaded by path first: NVRTC and the bindings then find these, and no others, by name.
        for builtins in sorted(Path(library).parent.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        from cuda.bindings import nvrtc

        self._api = nvrtc

    def compile(
        self, job: Mapping[str, Any], sources: Mapping[str, bytes], include: str | None, stage: Path
    ) -> dict[str, Any]:
        """Compile the job into `stage`: one cubin with all entries, one PTX; returns the record.

        sources: contents by the names that the compiler knows them under, the kernel's first.
        """
        (name, source), *headers = sources.items()
        options = [flag.encode() for flag in job["compiler"]["flags"]]
        options += [f"-I{include}".encode()] if include else []
        program = self._checked(
            self._api.nvrtcCreateProgram(
                source, f"{job['kernel']}/{name}".encode(), len(headers),
                [content for _, content in headers], [n.encode() for n, _ in headers],
            )
        )  # fmt: skip
        try:
            (result,) = self._api.nvrtcCompileProgram(program, len(options), options)
            log = self._text(program, "ProgramLog")
            if result != self._api.nvrtcResult.NVRTC_SUCCESS:
                raise self._failure(job["arch"], result, log)
            image = self._bytes(program, "CUBIN")
            ptx = self._bytes(program, "PTX").rstrip(b"\0")
        finally:
            self._api.nvrtcDestroyProgram(program)
        (stage / "kernel.cubin").write_bytes(image)
        (stage / "kernel.ptx").write_bytes(ptx)
        return {
            "entries": [self._record(e, image, log, job["arch"]) for e in job["entries"]],
            "ptx": {e["entry"]: "kernel.ptx" for e in job["entries"]},
            "warnings": [*remarks(log), *check_ptx(ptx.decode())],
        }

    def _record(self, spec: Mapping[str, Any], image: bytes, log: str, arch: str) -> Any:
        cubin = read_cubin(image)
        entry = cubin.entries.get(spec["entry"])
        dynamic = entry.launch_facts.get(_DYNAMIC_SHARED, 0) if entry else 0
        spilled = spills(log).get(spec["entry"])
        return entry_record(
            spec, cubin, image, "kernel.cubin", spilled, arch=arch, dynamic_shared_bytes=dynamic
        )

    def _failure(self, arch: str, result: Any, log: str) -> Exception:
        if "gpu-architecture" in log or "invalid value" in log.partition("\n")[0]:
            known = self._checked(self._api.nvrtcGetSupportedArchs())
            return ToolchainError(
                f"NVRTC {self.version} does not know {arch}; it knows "
                f"{' '.join(f'sm_{a}' for a in known)}: {log.strip()}"
            )
        return CompileError(log.strip() or result.name)

    @property
    def version(self) -> str:
        return ".".join(map(str, self._checked(self._api.nvrtcVersion())))

    def _bytes(self, program: Any, what: str) -> bytes:
        size = self._checked(getattr(self._api, f"nvrtcGet{what}Size")(program))
        content = bytearray(size)
        self._checked(getattr(self._api, f"nvrtcGet{what}")(program, content))
        return bytes(content)

    def _text(self, program: Any, what: str) -> str:
        return self._bytes(program, what).decode(errors="replace").rstrip("\0\n ")

    def _checked(self, results: tuple[Any, ...]) -> Any:
        if results[0] != self._api.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC: {results[0].name}")
        return results[1] if len(results) == 2 else results[1:]
