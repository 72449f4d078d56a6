"""What decides the rounding of a function: its floating-point steps, and what feeds them.

A step is an opcode with the modifiers that change its result, and the kinds of operation that its
operands come from, such as `FADD(FADD, FMUL)`. The set of steps is the same however often a loop is
unrolled and wherever registers are allocated; a product that is rounded before it is added, a sum
that becomes a tree, another exponential or another tensor type are other steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product

from sparsekit.codegen.gathers import Traced
from sparsekit.codegen.sass import SassInstruction
from sparsekit.codegen.values import Labels, Use

_ARITHMETIC = frozenset({
    "FADD", "FMUL", "FFMA", "FADD2", "FMUL2", "FFMA2", "DADD", "DMUL", "DFMA", "HADD2", "HMUL2",
    "HFMA2", "MUFU",
})  # fmt: skip
_CONVERSIONS = frozenset({"F2F", "F2FP", "HADD2.F32", "I2F", "F2I"})
_SCHEDULING = frozenset({"MMA", "reuse"})  # HFMA2.MMA is HFMA2 on another pipe
_MAX_STEPS = 4096  # a bound on what is kept; no kernel of ours has a hundred
PRODUCT, SUM, FUSED, RECIPROCAL = "product", "sum", "fma", "reciprocal"
_SUMS = frozenset({"FADD", "FADD2", "DADD", "HADD2"})


def tensor_instructions(code: Iterable[SassInstruction]) -> dict[str, int]:
    """Counts of matrix instructions by opcode, which names shape and types."""
    counts = Counter(i.opcode for i in code if is_tensor(i.base))
    return dict(sorted(counts.items()))


def is_tensor(base: str) -> bool:
    return base.endswith("MMA") and base != "HFMA2"


def rounding_steps(code: Sequence[SassInstruction], traced: Traced) -> tuple[str, ...]:
    """The steps of a function, sorted, each once."""
    steps: set[str] = set()
    for instruction, use in zip(code, traced.uses, strict=True):
        if use is None:
            continue
        if is_tensor(instruction.base):
            steps.add(instruction.opcode)
        elif instruction.base in _ARITHMETIC and not _moves_a_constant(instruction):
            steps.update(_step(instruction, use, traced.labels))
        elif instruction.base in _CONVERSIONS:
            steps.add(_name(instruction))
    return tuple(sorted(steps)[:_MAX_STEPS])


def _moves_a_constant(instruction: SassInstruction) -> bool:
    """Whether ptxas uses it to load an immediate, as in `HFMA2 R2, -RZ, RZ, 0, 0`."""
    return instruction.operands.partition(",")[2].startswith("-RZ,RZ,")


def _step(instruction: SassInstruction, use: Use, labels: Labels) -> Iterable[str]:
    """The step once for every way its operands can be made."""
    name = _name(instruction)
    if instruction.base == "MUFU":
        return [name]
    kinds = [
        sorted({_kind(o) for o in labels.names(origins & labels.kinds)} or {"value"})
        for origins in use.operands
    ]
    return [f"{name}({', '.join(sorted(choice))})" for choice in product(*kinds)]


def _name(instruction: SassInstruction) -> str:
    base, *modifiers = instruction.opcode.split(".")
    return ".".join([base, *(m for m in modifiers if m not in _SCHEDULING)])


def _kind(origin: str) -> str:
    """What matters of an operand's origin: a product, a sum, a reciprocal, or just a value."""
    if origin in ("FMUL", "FMUL2", "DMUL", "HMUL2"):
        return PRODUCT
    if origin in _SUMS:
        return SUM
    if origin in ("FFMA", "FFMA2", "DFMA", "HFMA2"):
        return FUSED
    return RECIPROCAL if origin in ("MUFU.RCP", "MUFU.RSQ", "MUFU.RCP64H") else "value"
