"""torch tensors as facts and addresses. The only module of the runtime that imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from sparsekit.errors import ContextLostError, first_line

_DTYPES: dict[torch.dtype, str] = {
    torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
    torch.bool: "i1",
}  # fmt: skip
_BY_NAME = {name: dtype for dtype, name in _DTYPES.items()}
_LARGEST_ALIGNMENT_BYTES = 256
_ALL_BITS = 0xFF
_LEAD_CYCLES = 1_000_000  # about half a millisecond
EVENT_RESOLUTION_S = 0.5e-6  # of cudaEventElapsedTime, as its documentation says
ALLOCATION_ALIGN_BYTES = 256  # of every new CUDA tensor's address, by torch's allocators


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def dtype_name(dtype: torch.dtype) -> str:
    """`bf16` of torch.bfloat16; torch's own name where we have none."""
    return _DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def dtype_of(name: str) -> torch.dtype:
    return _BY_NAME[name]


def dtype_argument(value: object) -> str | None:
    """The element type that `out_dtype=` names, as a torch dtype or a name; None if none."""
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    return value if isinstance(value, str) and value in _BY_NAME else None


def alignment(address: int) -> int:
    """The largest power of two up to 256 that divides the address."""
    return (
        min(address & -address, _LARGEST_ALIGNMENT_BYTES) if address else _LARGEST_ALIGNMENT_BYTES
    )


def address(tensor: torch.Tensor) -> int:
    """Where kernels see the tensor; on the CPU from the start of its storage, which the emulator
    lays at a multiple of 256 bytes."""
    return int(tensor.data_ptr()) if tensor.is_cuda else placement(tensor).offset_bytes


@dataclass(frozen=True)
class Placement:
    """Where a tensor on the CPU lies: in which storage, and from its first byte to its last.

    lines: (how many, bytes of each, bytes from one to the next) where it is lines at one distance
    with gaps between them, else None.
    """

    storage_address: int
    offset_bytes: int
    span_bytes: int
    lines: tuple[int, int, int] | None


def placement(tensor: torch.Tensor) -> Placement:
    storage = tensor.untyped_storage().data_ptr()
    size, last = tensor.element_size(), 0
    if tensor.numel():
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    lines = _lines_of(tensor)
    in_bytes = (lines[0], lines[1] * size, lines[2] * size) if lines else None
    return Placement(storage, tensor.storage_offset() * size, last * size, in_bytes)


def _lines_of(tensor: torch.Tensor) -> tuple[int, int, int] | None:
    """As in Placement, in elements."""
    sizes = zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True)
    line, count, distance = 1, 1, 0
    for n, stride in (pair for pair in sizes if pair[0] != 1):
        if count == 1 and stride == line:
            line *= n
        elif count == 1 and stride > line:
            count, distance = n, stride
        elif count > 1 and stride == count * distance:
            count *= n
        else:
            return None
    return (count, line, distance) if count > 1 else None


def empty(shape: tuple[int, ...], dtype: str, device: torch.device) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype_of(dtype), device=device)


def scratch(shape: tuple[int, ...], dtype: str, device: torch.device) -> torch.Tensor:
    """Memory whose content means nothing; on the CPU all its bits are set: NaN, or -1.

    There calls are emulated, and one is known again by all that it could read.
    """
    memory = empty(shape, dtype, device)
    if device.type == "cpu" and memory.numel():
        memory.view(torch.uint8).fill_(_ALL_BITS)
    return memory


def stream_of(device: torch.device) -> int:
    """The handle of the device's current stream; 0 where there are none."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.current_stream(device).cuda_stream)


def capturing() -> bool:
    """Whether the current stream is recording a CUDA graph."""
    return torch.cuda.is_available() and bool(torch.cuda.is_current_stream_capturing())


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Make the device current, its context made; the one that was current is so again after."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield


def synchronize(device: torch.device) -> None:
    """Wait for the device. Raises ContextLostError when a kernel on it has faulted."""
    if device.type == "cuda":
        with _faults_told(device):
            torch.cuda.synchronize(device)


@contextmanager
def _faults_told(device: torch.device) -> Iterator[None]:
    """Around a wait: what torch raises then is a fault of a kernel before it."""
    try:
        yield
    except RuntimeError as error:
        raise ContextLostError(f"a kernel faulted on {device}: {first_line(error)}") from error


def elapsed_s(
    device: torch.device, work: Callable[[], object], before: Callable[[], object] | None = None
) -> float:
    """Seconds between CUDA events around the work on the device's current stream.

    before: work for the same stream that is not measured. Raises ContextLostError when a kernel
    faulted.
    """
    with torch.cuda.device(device):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(_LEAD_CYCLES)  # the host is ahead by then, and its time is not measured
        if before is not None:
            before()
        start.record()
        work()
        end.record()
        with _faults_told(device):
            end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def on_streams(device: torch.device, calls: Sequence[Callable[[], object]]) -> None:
    """Make each call on a stream of its own, all behind what is enqueued, and wait for all."""
    if device.type != "cuda":
        for call in calls:
            call()
        return
    with torch.cuda.device(device):
        main = torch.cuda.current_stream()
        streams = [torch.cuda.Stream() for _ in calls]
        for stream, call in zip(streams, calls, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                call()
        for stream in streams:
            main.wait_stream(stream)
    synchronize(device)


@cache
def initialise(index: int) -> None:
    """Make the primary context of the device, as torch does on first use."""
    torch.empty(0, device=torch.device("cuda", index))


def signature(tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    """All that a check or a choice may see of a tensor."""
    if tensor is None:
        return None
    return (tensor.dtype, tensor.shape, tensor.stride(), alignment(address(tensor)))


def facts(tensors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """dtypes, shapes, strides and alignments of the tensors that are there, by name."""
    present = {name: t for name, t in tensors.items() if t is not None}
    return {
        "dtypes": {name: dtype_name(t.dtype) for name, t in present.items()},
        "shapes": {name: tuple(t.shape) for name, t in present.items()},
        "strides": {name: _strides(t) for name, t in present.items()},
        "alignments": {name: alignment(address(t)) for name, t in present.items()},
    }


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """In elements; of a dim of one element, which no stride ever steps over, the packed one."""
    found, packed = [], 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        found.append(stride if size > 1 else packed)
        packed = found[-1] * max(size, 1)
    return tuple(reversed(found))
