"""Compiles kernels of triton_kernels.py; each line of stdin is a job as JSON, each line of stdout
its PTX and facts.

Run with the Triton to use on PYTHONPATH, and this folder on sys.path.
"""

import json
import sys

import triton
import triton_kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def compiled(job: dict) -> dict:
    function = getattr(triton_kernels, job["kernel"])
    names = function.arg_names
    signature = {n: "constexpr" if n in job["constants"] else job["types"][n] for n in names}
    source = ASTSource(
        fn=function,
        signature=signature,
        constexprs={(names.index(n),): value for n, value in job["constants"].items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in job["divisible_by_16"]},
    )
    found = triton.compile(
        source,
        target=GPUTarget("cuda", job["compute_capability"], 32),
        options={"num_warps": job["num_warps"], "num_ctas": job["blocks"]},
    )
    facts = found.metadata
    return {
        "ptx": found.asm["ptx"],
        "name": facts.name,
        "shared_bytes": facts.shared,
        "scratch_bytes": facts.global_scratch_size,
        "num_warps": facts.num_warps,
        "tensor_maps": getattr(facts, "tensordesc_meta", None),
    }


for line in sys.stdin:
    print(json.dumps(compiled(json.loads(line))), flush=True)
