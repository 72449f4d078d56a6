"""What each PTX instruction writes: the table that parser, lint and emulator share.

Sources: PTX ISA 8.7 to 9.4, Instructions, chapter by chapter; the forms that ptxas 13.4 and the
compilers of CUDA 13.0 to 13.5 and Triton 3.6 to 3.9 take and give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from sparsekit.ptx.errors import OperandError
from sparsekit.ptx.operands import Address, Immediate, Operand

# How many leading operands an instruction writes, where it is no plain number:
BEFORE_ADDRESS = -1  # all that stand before the first address: `p|q, value, [barrier], state`
ACCUMULATES = -2  # the first, which is also read unless scale-d is the constant 0
CALL = -3  # the parenthesised results before the target

_WRITE_FIRST = """
    add addc sub subc mul mad madc mul24 mad24 sad div rem abs neg min max popc clz bfind fns brev
    bfe bfi szext bmsk dp4a dp2a clmad
    testp copysign fma rcp sqrt rsqrt sin cos lg2 ex2 tanh
    set setp selp slct
    and or xor not cnot lop3 shf shl shr
    mov shfl prmt ld ldu createpolicy isspacep cvta cvt mapa getctarank spdecompress
    tex tld4 txq istypep suld suq
    atom vote match activemask redux elect
    mma ldmatrix movmatrix
    alloca stacksave
    vadd vsub vabsdiff vmin vmax vshl vshr vmad vset
    vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2 vset2
    vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4 vset4
"""
_WRITE_NOTHING = """
    st prefetch prefetchu applypriority discard
    sust sured
    bra ret exit
    membar fence red griddepcontrol
    stmatrix
    setmaxnreg stackrestore
    brkpt nanosleep pmevent trap
"""
_BY_OPERATION: Mapping[str, Mapping[str, int]] = {
    "bar": {"sync": 0, "arrive": 0, "warp": 0, "red": 1},
    "barrier": {"sync": 0, "arrive": 0, "cluster": 0, "red": 1},
    "brx": {"idx": 0},
    "clusterlaunchcontrol": {"try_cancel": 0, "query_cancel": 1},
    "cp": {"async": 0, "reduce": 0},
    "fabric": {
        **dict.fromkeys(("try_get", "try_put", "try_red", "try_pullred", "try_atom"), 0),
        **dict.fromkeys(("submit", "wait"), 0),
    },
    "mbarrier": {
        **dict.fromkeys(("init", "inval", "expect_tx", "complete_tx"), 0),
        **dict.fromkeys(("arrive", "arrive_drop", "test_wait", "try_wait"), BEFORE_ADDRESS),
        **dict.fromkeys(("pending_count", "check_layout"), 1),
    },
    "multimem": {"ld_reduce": 1, "st": 0, "red": 0, "cp": 0},
    "spcompress": {"b8": 2, "b16": 2},
    "tcgen05": {
        "ld": BEFORE_ADDRESS,
        **dict.fromkeys(("alloc", "dealloc", "relinquish_alloc_permit", "st", "wait"), 0),
        **dict.fromkeys(("cp", "shift", "mma", "commit", "fence"), 0),
    },
    "tensormap": {"replace": 0, "cp_fenceproxy": 0},
    "wgmma": {"mma_async": ACCUMULATES, "fence": 0, "commit_group": 0, "wait_group": 0},
    "wmma": {"load": 1, "store": 0, "mma": 1},
}
_PLAIN: Mapping[str, int] = {
    **dict.fromkeys(_WRITE_FIRST.split(), 1),
    **dict.fromkeys(_WRITE_NOTHING.split(), 0),
    "call": CALL,
}
BASES = frozenset(_PLAIN) | frozenset(_BY_OPERATION)
"""Every base opcode that the parser takes."""

_SCALE_D, _SPARSE_SCALE_D = 3, 5  # after d, a, b, and after d, a, b, metadata, selector
_KEPT_OPCODES = 4096


@dataclass(frozen=True, slots=True)
class Opcode:
    """A dotted opcode. modifiers keep their sub-qualifiers: ("async", "shared::cluster").

    destinations: how many leading operands are written, or one of the rules above.
    """

    text: str
    base: str
    modifiers: tuple[str, ...]
    destinations: int


@lru_cache(_KEPT_OPCODES)
def opcode(text: str) -> Opcode:
    """Split a dotted opcode and look it up. Raises OperandError for one not in the table."""
    base, *modifiers = text.split(".")
    if not all(modifiers):
        raise OperandError("an empty modifier")
    return Opcode(text, base, tuple(modifiers), _destinations(base, modifiers))


def _destinations(base: str, modifiers: list[str]) -> int:
    if base in _PLAIN:
        return _PLAIN[base]
    if base not in _BY_OPERATION:
        raise OperandError(f"unknown opcode {base}")
    if base in ("bar", "barrier") and modifiers[:1] == ["cta"]:
        modifiers = modifiers[1:]  # the scope stands before the operation
    operation = modifiers[0].partition("::")[0] if modifiers else ""
    if operation not in _BY_OPERATION[base]:
        raise OperandError(f"unknown operation {operation or '(none)'} of {base}")
    return _BY_OPERATION[base][operation]


def written(code: Opcode, operands: tuple[Operand, ...]) -> int:
    """How many of the leading operands the instruction writes; CALL has its own parser."""
    if code.destinations == BEFORE_ADDRESS:
        addresses = [i for i, operand in enumerate(operands) if isinstance(operand, Address)]
        if not addresses:
            raise OperandError(f"{code.base}.{code.modifiers[0]} without an address")
        return addresses[0]
    return 1 if code.destinations == ACCUMULATES else code.destinations


def scale_d(code: Opcode, operands: tuple[Operand, ...]) -> Operand:
    """The operand of wgmma.mma_async that says whether the accumulator is added to."""
    sparse = any(modifier.partition("::")[0] == "sp" for modifier in code.modifiers)
    index = _SPARSE_SCALE_D if sparse else _SCALE_D
    if len(operands) <= index:
        raise OperandError("wgmma.mma_async without scale-d")
    return operands[index]


def accumulates(code: Opcode, operands: tuple[Operand, ...]) -> bool:
    """Whether the written operand is read too: D of wgmma.mma_async, unless scale-d is 0."""
    return code.destinations == ACCUMULATES and scale_d(code, operands) != Immediate(0)
