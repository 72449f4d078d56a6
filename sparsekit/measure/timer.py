"""How a device times work. All that the timing of a case knows of a GPU comes in through here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from sparsekit.errors import first_line
from sparsekit.runtime.tensors import EVENT_RESOLUTION_S, elapsed_s

Call = Callable[[], object]
_FLUSHED_L2_SIZES = 4  # bytes overwritten, in sizes of L2: more than its replacement may keep


class NotCapturable(Exception):
    """A call that cannot be recorded in a CUDA graph; the message says which and why."""


class Timer(Protocol):
    """resolution_s: of one elapsed time.

    elapsed_s() is the time of enqueued work, after what is to come before it. recorded() makes one
    call out of many, or raises NotCapturable. flusher() gives what empties L2 of everything else.
    free_bytes() is the memory that copies of inputs may come from.
    """

    @property
    def resolution_s(self) -> float: ...
    def elapsed_s(self, work: Call, before: Call | None = None) -> float: ...
    def recorded(self, calls: Sequence[Call], name: str) -> Call: ...
    def flusher(self) -> Call: ...
    def free_bytes(self) -> int: ...


@dataclass(frozen=True)
class CudaTimer:
    """Events, graphs and memory of one CUDA device."""

    device: torch.device
    resolution_s: float = EVENT_RESOLUTION_S

    def elapsed_s(self, work: Call, before: Call | None = None) -> float:
        return elapsed_s(self.device, work, before)

    def recorded(self, calls: Sequence[Call], name: str) -> Call:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(self.device), torch.cuda.graph(graph):
                for call in calls:
                    call()
        except Exception as error:  # a callable may do anything that a capture forbids
            torch.cuda.synchronize(self.device)
            why = first_line(error)
            raise NotCapturable(f"{name} cannot be captured in a CUDA graph: {why}") from error
        return lambda: graph.replay()

    def flusher(self) -> Call:
        l2_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size
        memory = torch.empty(_FLUSHED_L2_SIZES * l2_bytes, dtype=torch.uint8, device=self.device)
        return lambda: memory.zero_()

    def free_bytes(self) -> int:
        """Memory that nobody has, what torch keeps for later included."""
        free, _ = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(free + kept)
