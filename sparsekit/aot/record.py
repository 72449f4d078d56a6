"""From a compiler's output to the records of a manifest, refusing what must not be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparsekit.aot.elf import Cubin, CubinEntry
from sparsekit.aot.ptxas_log import Spills
from sparsekit.digest import sha256_of
from sparsekit.errors import CompileError
from sparsekit.model.arch import parse_arch
from sparsekit.model.artifact import EntryRecord, Param
from sparsekit.model.kernel import Promise, type_bytes
from sparsekit.ptx import USE_BEFORE_DEFINITION, Finding, Function, Module, lint, parse
from sparsekit.ptx.limits import BLOCK_REGISTERS, block_registers

SCRATCH_ARGS = (("global_scratch", "*u8"), ("profile_scratch", "*u8"))


def entry_record(
    spec: Mapping[str, Any],
    cubin: Cubin,
    image: bytes,
    file: str,
    spilled: Spills | None,
    *,
    arch: str,
    dynamic_shared_bytes: int,
    threads: int | None = None,
    trailing: Sequence[tuple[str, str]] = (),
    global_scratch_bytes: int = 0,
) -> EntryRecord:
    """The record of one entry, checked against what its spec says.

    spec: `entry`, `args` and `promises` of the job's identity. trailing: parameters that the
    compiler appends. Raises CompileError for a missing entry, another arch, parameters that are not
    the spec's, or more shared memory than the arch has.
    """
    name = str(spec["entry"])
    found = cubin.entries.get(name)
    if found is None:
        raise CompileError(
            f"the cubin has no entry {name!r}, only {', '.join(cubin.entries) or 'none'}; "
            'spec.py names what the source defines as extern "C" __global__ (or @triton.jit)'
        )
    _check_arch(cubin, arch)
    bound = threads or found.threads
    if bound is None:
        raise CompileError(f"{name} states no thread count; give it __launch_bounds__(THREADS)")
    _check_shared(name, found.static_shared_bytes + dynamic_shared_bytes, arch)
    _check_registers(name, found.registers, bound)
    return EntryRecord(
        entry=name,
        cubin=file,
        cubin_sha256=sha256_of(image),
        params=_params(name, [*map(tuple, spec["args"]), *trailing], found),
        promises=tuple(Promise(a, d) for a, d in spec["promises"]),
        threads=bound,
        cluster=found.cluster,
        dynamic_shared_bytes=dynamic_shared_bytes,
        static_shared_bytes=found.static_shared_bytes,
        registers=found.registers,
        local_bytes=found.local_bytes,
        spill_store_bytes=spilled.store_bytes if spilled else None,
        spill_load_bytes=spilled.load_bytes if spilled else None,
        code_bytes=found.code_bytes,
        text_sha256=found.text_sha256,
        launch_facts=found.launch_facts,
        global_scratch_bytes=global_scratch_bytes,
    )


def _check_arch(cubin: Cubin, arch: str) -> None:
    asked = parse_arch(arch)
    wanted = arch if cubin.arch_is_exact else f"sm_{asked.major}{asked.minor}"
    if cubin.arch != wanted:
        raise CompileError(f"asked the compiler for {arch}, and the cubin is for {cubin.arch}")


def _check_shared(name: str, needed: int, arch: str) -> None:
    limit = parse_arch(arch).shared_bytes_optin
    if needed > limit:
        raise CompileError(
            f"{name} needs {needed} bytes of shared memory and {arch} has {limit} for a block; "
            "make its tiles or stages smaller for this arch (Variant.overrides)"
        )


def _check_registers(name: str, registers: int, threads: int) -> None:
    needed = block_registers(registers, threads)
    if needed > BLOCK_REGISTERS:
        raise CompileError(
            f"{name} has {registers} registers in each of {threads} threads, {needed} for a block, "
            f"and an SM has {BLOCK_REGISTERS}; give it __launch_bounds__, or fewer warps"
        )


def _params(name: str, args: list[tuple[str, str]], found: CubinEntry) -> tuple[Param, ...]:
    sizes = [type_bytes(t) for _, t in args]
    if sizes != [size for _, size in found.params]:
        wanted = ", ".join(f"{n}: {t}" for n, t in args)
        compiled = ", ".join(str(size) for _, size in found.params)
        raise CompileError(
            f"{name}: spec.py gives the arguments ({wanted}), of {sizes} bytes, and the compiled "
            f"kernel takes parameters of [{compiled}] bytes; make the two agree"
        )
    return tuple(
        Param(n, t, offset, size) for (n, t), (offset, size) in zip(args, found.params, strict=True)
    )


def check_ptx(text: str) -> tuple[str, ...]:
    """Warnings of the lint. Raises CompileError for what makes the code unusable."""
    module = parse(text)
    findings = lint(module)
    faults = [f for f in findings if f.severity == "error"]
    errors = [_told(f, module) for f in faults]
    errors += [_empty(e.name, module.target) for e in module.entries if _is_empty(e)]
    if errors:
        advice = _advice([f for f in faults if f.rule == USE_BEFORE_DEFINITION])
        raise CompileError("\n".join(["the PTX must not be used:", *errors, *advice]))
    return tuple(_told(f, module) for f in findings)


def _told(finding: Finding, module: Module) -> str:
    where = module.where(finding.loc)
    return f"{finding.entry}, PTX line {finding.line}{where and f' ({where})'}: {finding.message}"


def _advice(undefined: Sequence[Finding]) -> Iterable[str]:
    """PTX does not tell a variable that the source never set from one that the compiler lost."""
    if undefined:
        yield (
            "either the source reads a variable that it has not set, so set it; or the compiler "
            "moved the read ahead of the definition, so take another with --toolchain"
        )
    if any(f.loc is None for f in undefined):
        yield "build with --lineinfo to have the line of the source"


def _is_empty(entry: Function) -> bool:
    return all(i.opcode.base in ("ret", "exit") for i in entry.instructions)


def _empty(name: str, target: str) -> str:
    return (
        f"entry {name} is empty for {target}: its body was compiled out, most likely by a feature "
        "macro of another arch"
    )
