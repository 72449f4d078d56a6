"""Triton to cubin through `triton.compile`, in a worker process; nothing else imports triton.

Works alike with Triton 3.6 to 3.9; no GPU, driver or torch takes part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sparsekit.aot.elf import read_cubin
from sparsekit.aot.options import TRITON_DEFAULTS
from sparsekit.aot.ptxas_log import remarks, spills
from sparsekit.aot.record import SCRATCH_ARGS, check_ptx, entry_record
from sparsekit.aot.triton_source import load_source
from sparsekit.errors import CompileError, SpecError, ToolchainError
from sparsekit.model.arch import parse_arch
from sparsekit.model.toolchain import FIRST_PTXAS, assembler_role

_WARP_SIZE = 32
_UNKNOWN_GPU = re.compile(r"[^\n]*not defined for option 'gpu-name'[^\n]*")


def compile_job(
    job: Mapping[str, Any], files: Sequence[tuple[Path, str, bytes]], stage: Path,
    captured: Callable[[], str],
) -> dict[str, Any]:  # fmt: skip
    """Compile the job into `stage`, one cubin and PTX per entry; returns the record.

    files: the kernel's source and what it imports, as `load_source` takes them. captured(): what
    was printed since it was last asked.
    """
    _check_assemblers(job["compiler"]["environment"])
    module = load_source(files)
    entries, ptx, warnings = [], {}, []
    for spec in job["entries"]:
        name = spec["entry"]
        compiled, log = _compile_entry(_function(module, name), spec, job, captured)
        image, text = compiled.asm["cubin"], compiled.asm["ptx"]
        (stage / f"{name}.cubin").write_bytes(image)
        (stage / f"{name}.ptx").write_text(text)
        meta = compiled.metadata
        entries.append(
            entry_record(
                spec, read_cubin(image), image, f"{name}.cubin", spills(log).get(name),
                arch=job["arch"], dynamic_shared_bytes=meta.shared,
                threads=meta.num_warps * _WARP_SIZE, trailing=SCRATCH_ARGS,
                global_scratch_bytes=meta.global_scratch_size,
            )
        )  # fmt: skip
        ptx[name] = f"{name}.ptx"
        warnings += [*remarks(log), *check_ptx(text)]
    return {"entries": entries, "ptx": ptx, "warnings": warnings}


def _check_assemblers(environment: Mapping[str, str]) -> None:
    """Raise ToolchainError when Triton silently passes over an assembler that the user chose."""
    from triton import knobs

    used = {
        "TRITON_PTXAS_PATH": knobs.nvidia.ptxas.path,
        "TRITON_PTXAS_BLACKWELL_PATH": knobs.nvidia.ptxas_blackwell.path,
    }
    for variable, path in used.items():
        chosen = environment.get(variable)
        if chosen is not None and not Path(path).samefile(chosen):
            raise ToolchainError(
                f"{variable}={chosen} is no ptxas that Triton accepts (it takes {path}); "
                "correct the variable or unset it"
            )


def _function(module: ModuleType, name: str) -> Any:
    from triton.runtime.jit import JITFunction

    function = getattr(module, name, None)
    while function is not None and not isinstance(function, JITFunction):
        function = getattr(function, "fn", None)  # out of autotune and heuristics wrappers
    if function is None:
        raise CompileError(
            f"{Path(str(module.__file__)).name} defines no @triton.jit function {name!r}"
        )
    return function


def _compile_entry(
    function: Any, spec: Mapping[str, Any], job: Mapping[str, Any], captured: Callable[[], str]
) -> tuple[Any, str]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = function.arg_names
    types = dict(map(tuple, spec["args"]))
    constants = _constants(names, types, job["constants"], spec.get("ones", ()))
    signature = {n: "constexpr" if n in constants else types[n] for n in names}
    attributes = {
        (names.index(arg),): [["tt.divisibility", divisor]] for arg, divisor in spec["promises"]
    }
    source = ASTSource(
        fn=function,
        signature=signature,
        constexprs={(names.index(n),): v for n, v in constants.items()},
        attrs=attributes,
    )
    capability = parse_arch(job["arch"]).compute_capability
    target = GPUTarget("cuda", capability[0] * 10 + capability[1], _WARP_SIZE)
    captured()
    try:
        compiled = triton.compile(source, target=target, options=_options(job))
    except Exception as error:
        raise _failure(error, function, job["arch"], captured()) from error
    return compiled, captured()


def _constants(
    names: list[str], types: Mapping[str, str], constants: Mapping[str, Any], ones: Sequence[str]
) -> dict[str, Any]:
    """The compile-time parameters by name: constants in capitals, integers that are 1; what is not
    passed is None."""
    capitals = {n.upper(): v for n, v in constants.items()}
    found: dict[str, Any] = {}
    for name in names:
        if name in types:
            continue
        if name in ones:
            found[name] = 1
            continue
        found[name] = capitals.get(name)
        if name not in capitals and name.isupper():
            raise SpecError(f"no variant or instance gives the compile-time parameter {name}")
    strangers = [n for n in types if n not in names]
    if strangers:
        raise SpecError(f"spec.py gives the argument {strangers[0]!r}, which the function lacks")
    return found


def _options(job: Mapping[str, Any]) -> dict[str, Any]:
    from triton.backends.nvidia.compiler import CUDAOptions

    options: dict[str, Any] = job["compiler"]["options"]
    fields = CUDAOptions.__dataclass_fields__
    # A release that lacks an option does what its default says; anything else it cannot do.
    lacking = [n for n, v in options.items() if n not in fields and _is_said(n, v)]
    if lacking:
        raise SpecError(f"unknown Triton option {sorted(lacking)[0]!r}")
    return {n: tuple(v) if isinstance(v, list) else v for n, v in options.items() if n in fields}


def _is_said(option: str, value: Any) -> bool:
    return option not in TRITON_DEFAULTS or value != TRITON_DEFAULTS[option]


def _told(error: BaseException, function: Any) -> str:
    """Triton's errors from a call in the function down to the cause, each with its place."""
    told = []
    found: BaseException | None = error
    while found is error or hasattr(found, "src"):
        told.append(f"{_place(found, function)}{type(found).__name__}: {found}".strip())
        found = found.__cause__ if found is not None else None
    return "\n".join(told)


def _place(error: BaseException | None, function: Any) -> str:
    """`FILE:LINE: ` of Triton's error, which counts lines from the `def`; empty for another's."""
    line = getattr(getattr(error, "node", None), "lineno", None)
    source = getattr(error, "src", None)
    at_fault = next((f for f in _called_by(function) if f.src == source), None)
    if line is None or at_fault is None:
        return ""
    above = next(i for i, text in enumerate(at_fault.raw_src) if text.lstrip().startswith("def "))
    file = at_fault.fn.__code__.co_filename
    return f"{file}:{at_fault.starting_line_number + above + line - 1}: "


def _called_by(function: Any) -> Iterator[Any]:
    """The function and the `@triton.jit` functions that it can name, each once."""
    from triton.runtime.jit import JITFunction

    waiting, seen = [function], set()
    while waiting:
        known = waiting.pop()
        if id(known) not in seen:
            seen.add(id(known))
            yield known
            waiting += [v for v in known.fn.__globals__.values() if isinstance(v, JITFunction)]


def _failure(error: Exception, function: Any, arch: str, printed: str) -> Exception:
    text = _told(error, function)
    told = _UNKNOWN_GPU.search(f"{text}\n{printed}")
    if told is None:
        return CompileError(text)
    import triton
    from triton import knobs

    capability = parse_arch(arch).compute_capability
    modern = assembler_role(triton.__version__, capability) == "ptxas-blackwell"
    tool = knobs.nvidia.ptxas_blackwell if modern else knobs.nvidia.ptxas
    variable = "TRITON_PTXAS_BLACKWELL_PATH" if modern else "TRITON_PTXAS_PATH"
    return ToolchainError(
        f"ptxas {tool.version} ({tool.path}) does not know {arch}: {told[0].strip()}; that of CUDA "
        f"{FIRST_PTXAS[capability]} is the first that does: use a newer "
        f"Triton, or set {variable} to a ptxas that knows it"
    )
