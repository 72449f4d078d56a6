"""What an operator needs of a device: the one seam between a GPU and the emulator.

Selection, argument checks, packing and plans are the same on both sides of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from sparsekit.model.call import Device
from sparsekit.model.tensor_map import MapFacts
from sparsekit.runtime.driver import KernelHandle


class DeviceDriver(Protocol):
    """Loads entries and launches them. `runtime.driver.Driver` is the GPU's.

    torch_type: the kind of device that tensors are on. runs: what it loads of an artifact.
    """

    @property
    def torch_type(self) -> Literal["cuda", "cpu"]: ...
    @property
    def runs(self) -> Literal["cubin", "ptx"]: ...

    def device(self, index: int) -> Device:
        """The facts of a device that a choice of kernel may look at."""

    def load(self, image: bytes, entry: str, what: str) -> KernelHandle:
        """Load a cubin or PTX and look up one entry. what: names the image in an error."""

    def allow_shared(self, kernel: KernelHandle, dynamic_bytes: int, device: int) -> None:
        """Let the kernel have that much dynamic shared memory."""

    def addresses(self, tensors: Mapping[str, Any], written: frozenset[str]) -> dict[str, int]:
        """Where kernels see each tensor, for the launches up to `finish`. written: the outputs."""

    def tensor_map(self, facts: MapFacts, address: int) -> bytes:
        """The tensor map of a tensor at that address, as kernels take it."""

    def launch_config(
        self, grid: Sequence[int], threads: int, cluster: Sequence[int] | None, shared_bytes: int,
        stream: int,
    ) -> Any:  # fmt: skip
        """Everything of a launch but the kernel and its arguments; grid in blocks."""

    def launch(self, config: Any, kernel: KernelHandle, cells: Sequence[Any], what: str) -> None:
        """Launch. cells: ctypes values, one per parameter; what: names the launch in an error."""

    def finish(self) -> None:
        """The launches of a call are all made: what they wrote is to be where tensors have it."""
