"""sparsekit: build, verify, run and inspect sparse-attention GPU kernels, ahead of time.

import sparsekit
sparse_prefill = sparsekit.load("sparse_prefill")
out, max_logits, lse = sparse_prefill(q, kv, indices, sm_scale)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from sparsekit.version import VERSION as __version__

if TYPE_CHECKING:
    from pathlib import Path

    from sparsekit.operators.operator import Operator

__all__ = ["__version__", "load"]


def load(
    reference: str, *, build: bool = True, cache_dir: Path | None = None,
    kernels: Sequence[Path] = (), note: Callable[[str], None] = warnings.warn,
    device: str = "cuda", arch: str | None = None, strict: bool = False,
    without: Iterable[str] = (), lineinfo: bool = False, batch_invariant: bool = True,
) -> Operator:  # fmt: skip
    """The operator that the reference means, as a callable with the op's own signature.

    reference: `NAME[:VARIANT][@TOOLCHAIN][@git:REV]`. An op leaves the choice of kernel and variant
    open; a kernel or a variant is what runs, or the call is refused. build: compile what is
    missing, else MissingArtifactError names the command. cache_dir: the artifact store, by default
    the command line's. kernels: folders beside the shipped ones. note(text): told of what the user
    should know (a damaged store, a fallback). device: `cuda`, or `cpu` to emulate the kernel's PTX
    on tensors on the CPU, with every check of `strict` and not in `without`; a call in which a
    fault is found raises FaultError. arch: whose PTX that is, by default the first that a kernel
    has. lineinfo: built with source lines, for the messages. batch_invariant: with True the bits of
    a row never depend on the batch: on how many rows or tokens (b, s_q) the call has, nor on what
    they are. With False the choice among an op's kernels may look at how many there are, and take
    one that is faster for so many and rounds otherwise; a kernel that is named is what runs.

    Raises UsageError for a reference that means no op, or several, and SpecError for a kernel that
    does not hold together. What a call takes and raises: `help(operator)`.
    """
    from sparsekit.operators.load import load as load_operator

    return load_operator(
        reference, build=build, cache_dir=cache_dir, kernels=kernels, note=note, device=device,
        arch=arch, strict=strict, without=without, lineinfo=lineinfo,
        batch_invariant=batch_invariant,
    )  # fmt: skip
