"""A kernel that has never run on a kind of GPU is not what an op's name means there."""

from __future__ import annotations

from dataclasses import replace

from sparsekit.discover import Catalog
from sparsekit.model import Call
from sparsekit.model.call import Device, packed_strides
from sparsekit.runtime.select import decide

B200 = Device((10, 0), sm_count=148, shared_bytes_optin=232448)


def taken(reference: str, device: Device) -> tuple[str | None, list[str]]:
    """What the reference means for a call of 64 heads, and why others were passed over."""
    shapes = {
        "q": (4, 64, 576), "kv": (300, 1, 576), "indices": (4, 1, 128), "out": (4, 64, 512),
        "max_logits": (4, 64), "lse": (4, 64),
    }  # fmt: skip
    types = {"q": "bf16", "kv": "bf16", "indices": "i32", "out": "bf16"}
    call = Call(
        dims={"s_q": 4, "h_q": 64, "d_qk": 576, "s_kv": 300, "h_kv": 1, "topk": 128},
        dtypes={name: types.get(name, "fp32") for name in shapes}, shapes=shapes,
        strides={n: packed_strides(s) for n, s in shapes.items()},
        alignments=dict.fromkeys(shapes, 256), scalars={"sm_scale": 0.1, "d_v": 512}, device=device,
    )  # fmt: skip
    choices = Catalog().resolve([reference])
    decisions = list(decide([(c.kernel, c.variants) for c in choices], call))
    found = next((d.candidate for d in decisions if d.taken), None)
    return found and found.kernel.name, [d.reason for d in decisions if not d.taken]


def test_the_op_s_name_means_a_kernel_that_has_run():
    kernel, reasons = taken("sparse_prefill", B200)
    assert kernel == "sparse_prefill"
    told = "never run on a GPU of compute capability 10.0; cu/sparse_prefill_sm100 takes it there"
    assert any(told in reason for reason in reasons)


def test_its_own_name_means_it():
    assert taken("cu/sparse_prefill_sm100", B200)[0] == "sparse_prefill_sm100"


def test_the_emulator_needs_no_proof():
    assert taken("sparse_prefill", replace(B200, emulated=True))[0] == "sparse_prefill_sm100"
