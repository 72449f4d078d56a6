"""Compile the sparse_attn_paged kernels: python compile_paged.py KERNEL.py OUT_DIR CC...

Writes NAME.sm_CC.ptx and NAME.sm_CC.json (arguments, shared bytes, warps) per kernel and arch.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {
    "q_ptr": "*bf16", "window_pool_ptr": "*bf16", "cmp_pool_ptr": "*bf16", "out_ptr": "*bf16",
    "attn_sink_ptr": "*fp32", "topk_idxs_ptr": "*i32", "cmp_counts_ptr": "*i32",
    "lse_ptr": "*fp32", "partial_out_ptr": "*fp32", "partial_lse_ptr": "*fp32",
    "softmax_scale": "fp32",
}  # fmt: skip
ALIGNED = {"q_ptr", "window_pool_ptr", "cmp_pool_ptr", "out_ptr", "partial_out_ptr"}
ALIGNED_STRIDES = ("q_", "window_pool_", "cmp_pool_", "out_")
TILE = {"D": 64, "BLOCK_H": 16, "BLOCK_K": 32, "HINT16": 1, "SKIP_TRAILING": 1}


def compile_one(module, name: str, constants: dict[str, int], cc: int, out: Path) -> None:
    fn = getattr(module, name)
    constants = {k: v for k, v in constants.items() if k in fn.arg_names}
    kinds = {
        a: "constexpr" if a in constants
        else TYPES.get(a, "i64" if a.endswith("_stride") else "i32")
        for a in fn.arg_names
    }  # fmt: skip
    promised = [
        i for i, a in enumerate(fn.arg_names)
        if a in ALIGNED or (a.endswith("_stride") and a.startswith(ALIGNED_STRIDES))
    ]  # fmt: skip
    source = ASTSource(
        fn=fn, signature=kinds,
        constexprs={(fn.arg_names.index(a),): v for a, v in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in promised},
    )  # fmt: skip
    built = triton.compile(source, target=GPUTarget("cuda", cc, 32), options={"num_warps": 4})
    stem = out / f"{name}{'.counts' if constants.get('HAS_COUNTS') else ''}.sm_{cc}"
    stem.with_name(stem.name + ".ptx").write_text(built.asm["ptx"])
    facts = {
        "entry": built.metadata.name, "shared": built.metadata.shared,
        "threads": 32 * built.metadata.num_warps, "constants": constants,
        "args": [a for a in fn.arg_names if a not in constants],
    }  # fmt: skip
    stem.with_name(stem.name + ".json").write_text(json.dumps(facts))


def main(kernel: str, out: str, *capabilities: str) -> None:
    spec = importlib.util.spec_from_file_location("paged_kernel", kernel)
    module = importlib.util.module_from_spec(spec)
    sys.modules["paged_kernel"] = module
    spec.loader.exec_module(module)
    for cc in map(int, capabilities):
        for counts in (0, 1):
            constants = {**TILE, "HAS_COUNTS": counts, "HAS_LSE": 1}
            compile_one(module, "sparse_attn_paged_prefill", constants, cc, Path(out))
            constants = {**constants, "BLOCK_SPLIT": 64}
            compile_one(module, "sparse_attn_paged_decode_split", constants, cc, Path(out))
        constants = {"D": 64, "BLOCK_S": 16, "HAS_LSE": 1}
        compile_one(module, "sparse_attn_paged_decode_merge", constants, cc, Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
