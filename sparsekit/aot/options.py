"""Everything that a compiler is told, said in full: no default of its own decides the code.

Pure functions; what they return is part of an artifact's key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsekit.errors import SpecError
from sparsekit.model.arch import Arch
from sparsekit.model.kernel import Constant, Instance, Kernel, Variant
from sparsekit.model.toolchain import Toolchain

_NVRTC_DEFAULTS: dict[str, Constant] = {
    "fmad": True, "ftz": False, "prec_div": True, "prec_sqrt": True,
}  # fmt: skip
_NVRTC_OTHERS = frozenset({"maxrregcount"})
_TRITON_DEFAULTS: dict[str, Constant] = {"enable_fp_fusion": True}
_ELEMENT_TYPES = {"fp32": "float", "bf16": "__nv_bfloat16", "fp16": "__half", "i32": "int"}


def compiler_options(
    kernel: Kernel, variant: Variant, instance: Instance, arch: Arch, toolchain: Toolchain,
    lineinfo: bool,
) -> dict[str, Any]:  # fmt: skip
    """CUDA: `flags`. Triton: `options` and `environment`. Raises SpecError on an unknown option."""
    if kernel.lang == "cuda":
        return {"flags": _nvrtc_flags(kernel, variant, instance, arch, lineinfo)}
    options = {**_TRITON_DEFAULTS, **kernel.options}
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


def _triton_environment(toolchain: Toolchain, lineinfo: bool) -> dict[str, str]:
    return {
        "TRITON_DISABLE_LINE_INFO": "0" if lineinfo else "1",
        "TRITON_DEFAULT_FP_FUSION": "1",
        "TRITON_DUMP_PTXAS_LOG": "1",
        "TRITON_ALWAYS_COMPILE": "1",  # a hit in Triton's own cache would come without a log
        **toolchain.overrides,
    }
