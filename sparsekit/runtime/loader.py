"""Loading artifacts: once per entry and device, and only when it is what its manifest says."""

from __future__ import annotations

from dataclasses import dataclass

from sparsekit.errors import GpuError
from sparsekit.model.artifact import Artifact, EntryRecord
from sparsekit.runtime.driver import DEFAULT_SHARED_BYTES, Driver, KernelHandle


@dataclass(frozen=True)
class Loaded:
    """An entry ready to launch on one device."""

    record: EntryRecord
    handle: KernelHandle


class Loader:
    """Entries by artifact, entry and device."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._loaded: dict[tuple[str, str, int, bool], Loaded] = {}

    def entry(self, artifact: Artifact, name: str, device: int, *, ptx: bool = False) -> Loaded:
        """The entry, loaded. ptx: from its PTX, which the driver compiles. Raises GpuError."""
        key = (artifact.manifest.key, name, device, ptx)
        if key not in self._loaded:
            self._loaded[key] = self._load(artifact, name, device, ptx)
        return self._loaded[key]

    def _load(self, artifact: Artifact, name: str, device: int, ptx: bool) -> Loaded:
        record = artifact.manifest.entry(name)
        what = f"{artifact.manifest.identity['kernel']} for {artifact.manifest.arch}"
        image = artifact.ptx(name).encode() + b"\0" if ptx else artifact.cubin(name)
        handle = self.driver.load(image, name, f"{what} ({'PTX' if ptx else record.cubin})")
        expected = tuple((p.offset, p.size) for p in record.params)
        sizes = tuple(size for _, size in handle.params)
        if sizes != tuple(size for _, size in expected) or (not ptx and handle.params != expected):
            raise GpuError(
                f"{name} of {what}: the driver reports parameters (offset, size) {handle.params}, "
                f"and the manifest {expected}; build it again with --force"
            )
        if record.shared_bytes > DEFAULT_SHARED_BYTES:
            self.driver.allow_shared(handle, record.dynamic_shared_bytes, device)
        return Loaded(record, handle)
