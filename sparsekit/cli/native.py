"""What `--arch` means here: the GPUs that the driver sees, or every arch."""

from __future__ import annotations

from functools import cache

from sparsekit.model.arch import ArchRequest, parse_archs
from sparsekit.runtime.probe import probe_devices


def requested_archs(text: str | None) -> tuple[ArchRequest, ...]:
    """The requests of `--arch`; without it, native where there is a GPU, else all."""

    @cache
    def capabilities() -> list[tuple[int, int]]:
        return [d.compute_capability for d in probe_devices().devices]

    if text is not None:
        return parse_archs(text, capabilities)
    return parse_archs("native" if capabilities() else "all", capabilities)
