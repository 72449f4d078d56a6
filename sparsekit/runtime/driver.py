"""The CUDA driver API: the only module that touches `cuda.bindings.driver`.

Source: CUDA Driver API reference, library, execution-control and device management.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparsekit.errors import GpuError, first_line
from sparsekit.model.call import Device
from sparsekit.model.tensor_map import MAP_BYTES, MapFacts

DEFAULT_SHARED_BYTES = 48 * 1024  # static and dynamic; above it a kernel must be told that it may
_RELEASE_FILE = Path("/proc/driver/nvidia/version")
_RELEASE = re.compile(r"\b\d{3,}\.\d+(\.\d+)*")
_PTX_VERSION = re.compile(r"^\s*\.version\s+(\S+)", re.MULTILINE)
# Libraries by the sha256 of their image; they belong to no context. None is ever unloaded, since a
# CUDA graph, which outlives the operator that it was captured from, would be left without its code.
_LIBRARIES: dict[bytes, Any] = {}
_LIBRARIES_LOCK = threading.Lock()
_MAP_TYPES = {
    "bf16": "BFLOAT16", "fp16": "FLOAT16", "fp32": "FLOAT32", "fp64": "FLOAT64",
    "i16": "UINT16", "i32": "INT32", "i64": "INT64",
}  # fmt: skip
_BYTE_MAP_TYPE = "UINT8"  # of all element types of one byte
_ADVICE = {
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the cubin is for another arch; sparsekit build --arch native",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "the driver is older than the compiler; "
    "use a cubin for this GPU (sparsekit build --arch native) or a newer driver",
    "CUDA_ERROR_INVALID_IMAGE": "the driver cannot read it as a cubin",
    "CUDA_ERROR_OUT_OF_MEMORY": "the GPU has no memory left",
}


@dataclass(frozen=True)
class KernelHandle:
    """A loaded entry. params: (offset, size) in bytes, as the driver reports them."""

    handle: Any
    library: Any
    params: tuple[tuple[int, int], ...]


class Driver:
    """The driver, initialised. Raises GpuError when there is none, or it refuses."""

    torch_type: Literal["cuda"] = "cuda"
    runs: Literal["cubin"] = "cubin"

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise GpuError(f"cuda-python is not installed: {error}") from error
        self._cu = driver
        try:
            self._check(driver.cuInit(0), "cuInit")
        except GpuError:
            raise
        except Exception as error:  # the bindings raise their own kinds when libcuda is absent
            raise GpuError(_no_driver(error)) from error

    @property
    def version(self) -> str:
        """The newest CUDA that the driver supports, as `13.0`."""
        number = self._check(self._cu.cuDriverGetVersion(), "cuDriverGetVersion")
        return f"{number // 1000}.{number % 1000 // 10}"

    @property
    def release(self) -> str:
        """The driver's own release, as `580.159.04`; the CUDA that it supports where that is all
        that is told."""
        try:
            told = _RELEASE.search(_RELEASE_FILE.read_text())
        except OSError:
            told = None
        return told[0] if told else self.version

    def devices(self) -> Iterable[Device]:
        count = self._check(self._cu.cuDeviceGetCount(), "cuDeviceGetCount")
        return [self.device(index) for index in range(count)]

    def device(self, index: int) -> Device:
        """The device of that number among those that this process may see."""
        handle = self._check(self._cu.cuDeviceGet(index), f"cuDeviceGet({index})")
        name = self._check(self._cu.cuDeviceGetName(128, handle), "cuDeviceGetName")
        prefix = "CU_DEVICE_ATTRIBUTE_"
        major, minor, sms, shared = (
            self._attribute(handle, prefix + attribute)
            for attribute in (
                "COMPUTE_CAPABILITY_MAJOR",
                "COMPUTE_CAPABILITY_MINOR",
                "MULTIPROCESSOR_COUNT",
                "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            )
        )
        bus = self._check(self._cu.cuDeviceGetPCIBusId(32, handle), "cuDeviceGetPCIBusId")
        uuid = self._check(self._cu.cuDeviceGetUuid(handle), "cuDeviceGetUuid")
        return Device(
            (major, minor), sms, shared, index, _text(name), _text(bus), bytes(uuid.bytes).hex(),
            self.release,
        )  # fmt: skip

    def _attribute(self, device: Any, name: str) -> int:
        attribute = getattr(self._cu.CUdevice_attribute, name)
        value = self._check(self._cu.cuDeviceGetAttribute(attribute, device), name)
        return int(value)

    def load(self, image: bytes, entry: str, what: str) -> KernelHandle:
        """Load a cubin (or PTX) and look up one entry. what: names the image in an error."""
        library = self._library(image, what)
        kernel = self._check(
            self._cu.cuLibraryGetKernel(library, entry.encode()), f"looking up {entry} in {what}"
        )
        return KernelHandle(kernel, library, self._params(kernel))

    def _library(self, image: bytes, what: str) -> Any:
        """The image as a library: one for all entries, devices and operators of the process."""
        digest = hashlib.sha256(image).digest()
        with _LIBRARIES_LOCK:
            if digest not in _LIBRARIES:
                try:
                    _LIBRARIES[digest] = self._check(
                        self._cu.cuLibraryLoadData(image, [], [], 0, [], [], 0), f"loading {what}"
                    )
                except GpuError as error:
                    raise GpuError(f"{error}{self._ptx_note(image)}") from error
            return _LIBRARIES[digest]

    def _ptx_note(self, image: bytes) -> str:
        told = _PTX_VERSION.search(image[:4096].decode(errors="replace"))
        return f" (PTX {told[1]}; the driver supports CUDA {self.version})" if told else ""

    def _params(self, kernel: Any) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        while True:
            result, *info = self._cu.cuKernelGetParamInfo(kernel, len(found))
            if result == self._cu.CUresult.CUDA_ERROR_INVALID_VALUE:  # there is no such parameter
                return tuple(found)
            self._check((result, *info), f"asking for parameter {len(found)}")
            found.append((int(info[0]), int(info[1])))

    def allow_shared(self, kernel: KernelHandle, dynamic_bytes: int, device: int) -> None:
        """Let the kernel have that much dynamic shared memory on the device.

        Needed where that and its static shared memory are more than DEFAULT_SHARED_BYTES.
        """
        attribute = self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        handle = self._check(self._cu.cuDeviceGet(device), f"cuDeviceGet({device})")
        self._check(
            self._cu.cuKernelSetAttribute(attribute, dynamic_bytes, kernel.handle, handle),
            f"asking for {dynamic_bytes} bytes of shared memory",
        )

    def addresses(self, tensors: Mapping[str, Any], written: frozenset[str]) -> dict[str, int]:
        """Kernels see tensors where they are."""
        return {name: int(tensor.data_ptr()) for name, tensor in tensors.items()}

    def finish(self) -> None:
        """Results are in place when the stream has got there."""

    def tensor_map(self, facts: MapFacts, address: int) -> bytes:
        """What lies outside of the tensor is zero; a copy fetches whole 256-byte lines into L2."""
        cu, prefix = self._cu, "CU_TENSOR_MAP_"
        dtype = getattr(
            cu.CUtensorMapDataType,
            f"{prefix}DATA_TYPE_{_MAP_TYPES.get(facts.dtype, _BYTE_MAP_TYPE)}",
        )
        found = self._check(
            cu.cuTensorMapEncodeTiled(
                dtype, len(facts.dims), address,
                [cu.cuuint64_t(n) for n in facts.dims],
                [cu.cuuint64_t(n) for n in facts.stride_bytes],
                [cu.cuuint32_t(n) for n in facts.box], [cu.cuuint32_t(1)] * len(facts.dims),
                cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                getattr(cu.CUtensorMapSwizzle, f"{prefix}SWIZZLE_{facts.swizzle.upper()}"),
                cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ),
            f"making a tensor map of {facts}",
        )  # fmt: skip
        return ctypes.string_at(found.getPtr(), MAP_BYTES)

    def launch_config(
        self, grid: Sequence[int], threads: int, cluster: Sequence[int] | None, shared_bytes: int,
        stream: int,
    ) -> Any:  # fmt: skip
        """Everything of a launch but the kernel and its arguments; grid in blocks."""
        cu = self._cu
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared_bytes
        config.hStream = stream
        if cluster:
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dims = attribute.value.clusterDim
            dims.x, dims.y, dims.z = cluster
            config.attrs, config.numAttrs = [attribute], 1
        return config

    def launch(self, config: Any, kernel: KernelHandle, cells: Sequence[Any], what: str) -> None:
        """Launch. cells: ctypes values, one per parameter; what: names the launch in an error."""
        addresses = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))
        result = self._cu.cuLaunchKernelEx(config, kernel.handle, ctypes.addressof(addresses), 0)
        self._check(result, what)

    def _check(self, results: tuple[Any, ...], what: str) -> Any:
        """The value of a driver call. Raises GpuError naming the call, the code and what to do."""
        if results[0] != self._cu.CUresult.CUDA_SUCCESS:
            name = getattr(results[0], "name", str(results[0]))
            advice = f": {_ADVICE[name]}" if name in _ADVICE else ""
            raise GpuError(f"{what}: the driver says {name}{advice}")
        return results[1] if len(results) == 2 else results[1:]


def _text(name: Any) -> str:
    return bytes(name).split(b"\0")[0].decode(errors="replace")


def _no_driver(error: Exception) -> str:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver here: libcuda.so.1 does not load"
    return f"the NVIDIA driver does not start: {first_line(error)}"
