"""The nouns: frozen data without I/O. `spec.py` and `op.py` files import from here alone."""

from sparsekit.model.arch import (
    ALL_CAPABILITIES,
    Arch,
    ArchRequest,
    Capability,
    format_capability,
    parse_arch,
    parse_archs,
)
from sparsekit.model.call import Call, Device
from sparsekit.model.kernel import (
    PORTABLE_CUDA_TARGETS,
    TRITON_TARGETS,
    Arg,
    Entry,
    Instance,
    Kernel,
    Launch,
    Override,
    Promise,
    Scratch,
    Variant,
)
from sparsekit.model.op import Case, Op, Scalar, Tensor, Work

__all__ = [
    "ALL_CAPABILITIES",
    "PORTABLE_CUDA_TARGETS",
    "TRITON_TARGETS",
    "Arch",
    "ArchRequest",
    "Arg",
    "Call",
    "Capability",
    "Case",
    "Device",
    "Entry",
    "Instance",
    "Kernel",
    "Launch",
    "Op",
    "Override",
    "Promise",
    "Scalar",
    "Scratch",
    "Tensor",
    "Variant",
    "Work",
    "format_capability",
    "parse_arch",
    "parse_archs",
]
