"""sparsekit: build, verify, run and inspect sparse-attention GPU kernels, ahead of time.

import sparsekit
sparse_prefill = sparsekit.load("sparse_prefill")
out, max_logits, lse = sparse_prefill(q, kv, indices, sm_scale)
"""

from __future__ import annotations

from typing import Any

from sparsekit.version import VERSION as __version__

__all__ = ["__version__", "load"]


def load(reference: str, **options: Any) -> Any:
    """The operator that a reference means, as a callable; see `sparsekit.operators.load`."""
    from sparsekit.operators.load import load as load_operator

    return load_operator(reference, **options)
