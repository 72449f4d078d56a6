"""`sparsekit doctor`. Works with click alone: whatever else is missing is one of its findings."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from sparsekit.cli.emit import emit
from sparsekit.cli.options import cache_dir_option, output_options
from sparsekit.errors import SparsekitError
from sparsekit.model.arch import ALL_CAPABILITIES, Arch, format_capability
from sparsekit.model.call import Device
from sparsekit.model.toolchain import Toolchain
from sparsekit.report.document import Document, Lines, Table
from sparsekit.runtime.probe import Probe, probe_devices
from sparsekit.settings import Settings, load
from sparsekit.toolchain.find import Toolchains
from sparsekit.toolchain.tools import find_ncu, find_nvdisasm, tool_version

_PACKAGES = (
    "click", "rich", "platformdirs", "numpy", "torch", "triton", "cuda-bindings",
    "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-nvdisasm", "safetensors",
    "zstandard",
)  # fmt: skip
_WITHOUT_CUDA = "+cpu"
_INSTALL = "pip install -c constraints.txt"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. advice: what to do about it when it is not ok."""

    subject: str
    ok: bool
    found: str
    advice: str = ""


@click.command()
@cache_dir_option
@output_options
def command(cache_dir: Path | None, form: str, output: Path | None) -> None:
    """GPUs, driver, compilers, tools, store, and what is missing.

    Asks the driver in a child process, so that one that hangs is a line here. Always exits 0: what
    is missing may not be needed.

    \b
    sparsekit doctor
    sparsekit doctor --format json
    """
    findings = list(_findings(cache_dir))
    rows = [("ok" if f.ok else "missing", f.subject, f.found) for f in findings]
    parts: list[Table | Lines] = [Table("", ("", "what", "found"), rows)]
    if advice := [f"{f.subject}: {f.advice}" for f in findings if f.advice and not f.ok]:
        parts.append(Lines(tuple(advice), "What to do"))
    data = {
        "schema": 1,
        "findings": [
            {"subject": f.subject, "ok": f.ok, "found": f.found, "advice": f.advice or None}
            for f in findings
        ],
    }
    emit(Document(data, tuple(parts)), form, output)


def _findings(cache_dir: Path | None) -> Iterator[Finding]:
    yield Finding(
        "Python",
        sys.version_info >= (3, 11),
        f"{platform.python_version()} on {platform.platform()}",
    )
    probe = probe_devices()
    for package in _PACKAGES:
        yield _package(package, with_gpu=bool(probe.devices))
    yield from _gpus(probe)
    try:
        settings = load(cache_dir=cache_dir)
    except (SparsekitError, ModuleNotFoundError) as error:
        yield Finding("settings", False, str(error), f"{_INSTALL} -e .")
        return
    yield from _toolchains(settings, probe.driver)
    yield _nvdisasm(settings)
    yield _ncu(settings)
    yield _store(settings)
    for device in probe.devices:
        yield from _kernels(settings, device)


def _package(name: str, *, with_gpu: bool) -> Finding:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(f"package {name}", False, "not installed", f"{_INSTALL} {name}")
    if name == "torch" and version.endswith(_WITHOUT_CUDA) and with_gpu:
        return Finding(f"package {name}", False, version, "to run kernels, install a CUDA build")
    return Finding(f"package {name}", True, version)


def _gpus(probe: Probe) -> Iterator[Finding]:
    if probe.problem:
        advice = "building and inspecting need no GPU; to run kernels, install NVIDIA's driver"
        yield Finding("driver", False, probe.problem, advice)
        return
    yield Finding("driver", True, f"supports CUDA {probe.driver}")
    if not probe.devices:
        yield Finding("GPU", False, "the driver shows none", "look at CUDA_VISIBLE_DEVICES")
    for device in probe.devices:
        found = (
            f"{device.name}, compute capability {format_capability(device.compute_capability)}, "
            f"{device.sm_count} SMs, {device.shared_bytes_optin} B of shared memory for a block"
        )
        yield Finding(f"GPU cuda:{device.index}", True, found)


def _kernels(settings: Settings, device: Device) -> Iterator[Finding]:
    """Of each kernel that keeps account: whether it has run on such a GPU, or on this one."""
    from sparsekit.discover import Catalog
    from sparsekit.operators.first_use import FirstUse
    from sparsekit.store.notes import Notes

    outcomes = FirstUse(Notes(settings.cache_dir)).outcomes(device)
    capability = device.compute_capability
    for kernel in Catalog(settings.kernel_dirs, settings.kernels_origin).kernels:
        if kernel.proven_on is None or not kernel.targets_for(capability):
            continue
        subject = f"{kernel.qualified_name} on cuda:{device.index}"
        if kernel.is_proven_on(capability):
            yield Finding(subject, True, f"has run on {format_capability(capability)}")
            continue
        tried = {v.name: outcomes.get(f"{kernel.qualified_name}:{v.name}") for v in kernel.variants}
        told = [f"{n}: checked here, {o.told}" for n, o in tried.items() if o and o.passed]
        told += [f"{n}: FAILED here, {o.told}" for n, o in tried.items() if o and not o.passed]
        failed = any(o and not o.passed for o in tried.values())
        yield Finding(
            subject, not failed, "; ".join(told) or "emulated only; its first use will be checked",
            f"it is not used here; report what sparsekit verify {kernel.qualified_name} prints",
        )  # fmt: skip


def _toolchains(settings: Settings, driver: str | None) -> Iterator[Finding]:
    toolchains = Toolchains(settings)
    for lang in ("cuda", "triton"):
        try:
            for toolchain in toolchains.all(lang):
                yield _toolchain(toolchain)
            used = toolchains.default(lang)
            if lang == "cuda" and driver:
                yield from _too_new(used, driver)
            if used.altered:
                yield Finding(
                    f"files of {used.id}", False, ", ".join(map(str, used.altered)),
                    "they are not what was installed; install the package anew",
                )  # fmt: skip
        except SparsekitError as error:
            yield Finding(f"compiler for {lang}", False, str(error), f"{_INSTALL} -e .")
    if settings.interpret:
        yield Finding(
            "TRITON_INTERPRET", False, "is set", "it is not passed on to the compiler; unset it"
        )


def _too_new(nvrtc: Toolchain, driver: str) -> Iterator[Finding]:
    """NVRTC's version is that of its CUDA; a driver takes no PTX, and across a major version no
    cubin, that is newer than the CUDA it supports. Source: CUDA Compatibility, NVIDIA."""
    compiler, supported = (tuple(map(int, v.split(".")[:2])) for v in (nvrtc.version, driver))
    if compiler <= supported:
        return
    refused = "cubins and PTX" if compiler[0] > supported[0] else "PTX"
    cuda = ".".join(map(str, compiler))
    yield Finding(
        f"driver for {nvrtc.id}", False, f"it supports CUDA {driver} and will refuse {refused}",
        f"install a driver for CUDA {cuda} or newer, or nvidia-cuda-nvrtc=={driver}.*",
    )  # fmt: skip


def _toolchain(toolchain: Toolchain) -> Finding:
    if not toolchain.compiles:
        found = f"artifacts from a bundle; it compiles nothing here ({toolchain.site})"
        return Finding(f"compiler {toolchain.id}", True, found)
    archs = [Arch(*c) for c in ALL_CAPABILITIES]
    known = [format_capability(a.compute_capability) for a in archs if not toolchain.lacks(a)]
    cautions = dict.fromkeys(t for a in archs if (t := toolchain.caution(a)))
    notes = "".join(f"; {text}" for text in cautions)
    return Finding(f"compiler {toolchain.id}", True, f"{' '.join(known)}{notes} ({toolchain.site})")


def _nvdisasm(settings: Settings) -> Finding:
    try:
        tool = find_nvdisasm(settings)
    except SparsekitError as error:
        return Finding("nvdisasm", False, "not found", str(error))
    version = tool_version(tool)
    broken = version.startswith(("does not run", "exit code"))
    advice = f"{_INSTALL} --force-reinstall nvidia-cuda-nvdisasm"
    return Finding("nvdisasm", not broken, f"{version} ({tool})", advice)


def _ncu(settings: Settings) -> Finding:
    found = find_ncu(settings)
    if found is None:
        advice = (
            "it comes with the CUDA toolkit, or NVIDIA's package nsight-compute; put it on PATH"
        )
        return Finding("ncu", False, "not found; only profile needs it", advice)
    return Finding("ncu", True, f"{found} ({tool_version(found)})")


def _store(settings: Settings) -> Finding:
    from sparsekit.store.layout import refuse_unsafe
    from sparsekit.store.maintain import damaged, entries

    root = settings.cache_dir
    if not root.is_dir():
        return Finding("store", True, f"{root}, not made yet")
    try:
        refuse_unsafe(root)
    except SparsekitError as error:
        return Finding("store", False, str(root), str(error))
    count, bad = sum(1 for _ in entries(root)), sum(1 for _ in damaged(root))
    found = f"{root}, {count} artifacts, {bad} damaged"
    return Finding("store", bad == 0, found, "damaged entries are rebuilt when they are next used")
