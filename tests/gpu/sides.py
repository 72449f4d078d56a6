"""The two machines that PTX text runs on: a GPU and the emulator."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from sparsekit.aot.assemble import assemble
from sparsekit.emulator import Memory, launch, load
from sparsekit.errors import GpuError
from sparsekit.runtime import tensors as torch_tensors
from sparsekit.runtime.driver import Driver, KernelHandle
from sparsekit.toolchain.packages import TRITON_BIN, find_package


class Machine(Protocol):
    def run(
        self, text: str, entry: str, threads: int, memory: Sequence[np.ndarray], out_words: int
    ) -> np.ndarray:
        """Launch a block for each item of the arrays; [blocks, threads, out_words] uint32.

        memory: what the entry's pointers but the last show, uint32 [blocks, ...] each.
        """

    def assembler(self, text: str) -> str:
        """What has made machine code of the text."""


class Gpu:
    """The first GPU, through the project's own driver."""

    def __init__(self) -> None:
        self._device = torch.device("cuda", 0)
        torch_tensors.initialise(0)
        self._driver = Driver()
        self._handles: dict[tuple[str, str], KernelHandle] = {}
        self._by_ptxas: set[str] = set()

    def _loaded(self, text: str, entry: str) -> KernelHandle:
        """The entry, assembled by the driver; by Triton's ptxas where the driver has no assembler
        or refuses the text."""
        try:
            handle = self._driver.load(text.encode() + b"\0", entry, "a tile's PTX")
        except GpuError:
            triton = find_package("triton", sys.path)
            if triton is None:
                raise
            ptxas = triton.file(f"{TRITON_BIN}/ptxas")
            handle = self._driver.load(
                assemble(ptxas, text, "sm_90a", ()).image, entry, "a tile's cubin"
            )
            self._by_ptxas.add(text)
        return handle

    def assembler(self, text: str) -> str:
        """What has assembled a text that ran."""
        return "ptxas" if text in self._by_ptxas else "driver"

    def run(
        self, text: str, entry: str, threads: int, memory: Sequence[np.ndarray], out_words: int
    ) -> np.ndarray:
        known = (text, entry)
        if known not in self._handles:
            self._handles[known] = self._loaded(text, entry)
        blocks = len(memory[0])
        inputs = [_on(self._device, array) for array in memory]
        out = torch.full((blocks, threads, out_words), -1, dtype=torch.int32, device=self._device)
        with torch_tensors.current(self._device):
            stream = torch_tensors.stream_of(self._device)
            config = self._driver.launch_config((blocks, 1, 1), threads, None, 0, stream)
            cells = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*inputs, out)]
            self._driver.launch(config, self._handles[known], cells, "launching a tile")
            torch_tensors.synchronize(self._device)
        found: np.ndarray = out.cpu().numpy().view(np.uint32)
        return found


def _on(device: torch.device, array: np.ndarray) -> Any:
    return torch.from_numpy(np.ascontiguousarray(array).view(np.int32)).to(device)


class Emulator:
    """The emulator, with all its checks. Raises FaultError when one finds something."""

    def run(
        self, text: str, entry: str, threads: int, memory: Sequence[np.ndarray], out_words: int
    ) -> np.ndarray:
        blocks, device = len(memory[0]), Memory()
        inputs = [
            device.allocate(array, f"in{number}", read_only=True)
            for number, array in enumerate(memory)
        ]
        out = device.allocate(4 * blocks * threads * out_words, "out")
        report = launch(load(text), entry, (blocks, 1, 1), threads, [*inputs, out], device)
        report.raise_faults()
        return device.read(out, np.uint32, (blocks, threads, out_words))

    def assembler(self, text: str) -> str:
        return "none"
