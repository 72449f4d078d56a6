"""Everything that a compiler is told, said in full: no default of its own decides the code.

Pure functions; what they return is part of an artifact's key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsekit.errors import SpecError
from sparsekit.model.arch import Arch
from sparsekit.model.kernel import Constant, Instance, Kernel, Variant
from sparsekit.model.toolchain import Toolchain, version_tuple

_NVRTC_DEFAULTS: dict[str, Constant] = {
    "fmad": True, "ftz": False, "prec_div": True, "prec_sqrt": True,
}  # fmt: skip
_NVRTC_OTHERS = frozenset({"maxrregcount"})
# The fields of Triton's CUDAOptions, releases 3.6 to 3.9, with its defaults; None is "not given".
# Left out are those that it sets itself, whatever it is told (arch, max_num_imprecise_acc_default),
# and the libraries that it brings along (extern_libs), which its fingerprint speaks for.
TRITON_DEFAULTS: dict[str, Any] = {
    "num_ctas": 1, "warp_size": 32, "maxnreg": None, "ptx_version": None, "ptx_options": None,
    "ir_override": None, "enable_fp_fusion": True, "enable_reflect_ftz": True,
    "launch_cooperative_grid": False, "launch_pdl": False, "default_dot_input_precision": "tf32",
    "allowed_dot_input_precisions": ["tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"],
    "debug": False, "backend_name": "cuda", "sanitize_overflow": True, "instrumentation_mode": "",
    "sched4reg": False, "clc": False, "fpsan_homomorphic_casts": False, "min_shared_mem": None,
}  # fmt: skip
_TRITON_SINCE = {
    "sched4reg": (3, 9), "clc": (3, 9), "fpsan_homomorphic_casts": (3, 9), "min_shared_mem": (3, 9),
}  # fmt: skip
_FIRST_WITH_FP8E4NV, _FIRST_WITHOUT_FP8E4B15 = (8, 9), (9, 0)
_ELEMENT_TYPES = {"fp32": "float", "bf16": "__nv_bfloat16", "fp16": "__half", "i32": "int"}


def compiler_options(
    kernel: Kernel, variant: Variant, instance: Instance, arch: Arch, toolchain: Toolchain,
    lineinfo: bool,
) -> dict[str, Any]:  # fmt: skip
    """CUDA: `flags`. Triton: `options` and `environment`. Raises SpecError on an unknown option."""
    if kernel.lang == "cuda":
        return {"flags": _nvrtc_flags(kernel, variant, instance, arch, lineinfo)}
    options = {**_triton_defaults(arch, toolchain), **kernel.options}
    options |= {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    return {"options": options, "environment": _triton_environment(toolchain, lineinfo)}


def _nvrtc_flags(
    kernel: Kernel, variant: Variant, instance: Instance, arch: Arch, lineinfo: bool
) -> list[str]:
    unknown = sorted(set(kernel.options) - set(_NVRTC_DEFAULTS) - _NVRTC_OTHERS)
    if unknown:
        known = ", ".join(sorted({*_NVRTC_DEFAULTS, *_NVRTC_OTHERS}))
        raise SpecError(
            f"{kernel.name}: unknown option {unknown[0]!r}; a CUDA kernel takes {known}"
        )
    # Else NVRTC looks for headers in a folder of the kernel's name below the working directory.
    flags = [f"-arch={arch}", "-std=c++17", "--ptxas-options=-v", "--no-source-include"]
    for name, value in {**_NVRTC_DEFAULTS, **kernel.options}.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        flags.append(f"--{name.replace('_', '-')}={text}")
    constants: Mapping[str, Constant] = {**variant.constants, **instance.constants}
    flags += [f"-DSK_{name.upper()}={_macro(value)}" for name, value in constants.items()]
    flags += [f"-DSK_TYPE_{n.upper()}={_ELEMENT_TYPES[t]}" for n, t in instance.dtypes.items()]
    return flags + (["-lineinfo"] if lineinfo else [])


def _macro(value: Constant) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _triton_defaults(arch: Arch, toolchain: Toolchain) -> dict[str, Any]:
    """What that release is told where the spec says nothing."""
    release, capability = version_tuple(toolchain.version), arch.compute_capability
    has_e4nv, deprecated = capability >= _FIRST_WITH_FP8E4NV, capability >= _FIRST_WITHOUT_FP8E4B15
    return {
        **{n: v for n, v in TRITON_DEFAULTS.items() if release >= _TRITON_SINCE.get(n, (0,))},
        "supported_fp8_dtypes": ["fp8e4b15", *(["fp8e4nv"] if has_e4nv else []), "fp8e5"],
        "deprecated_fp8_dot_operand_dtypes": ["fp8e4b15"] if deprecated else [],
    }


def _triton_environment(toolchain: Toolchain, lineinfo: bool) -> dict[str, str]:
    return {
        "TRITON_DISABLE_LINE_INFO": "0" if lineinfo else "1",
        "TRITON_DEFAULT_FP_FUSION": "1",
        "TRITON_DUMP_PTXAS_LOG": "1",
        "TRITON_ALWAYS_COMPILE": "1",  # a hit in Triton's own cache would come without a log
        **toolchain.overrides,
    }
