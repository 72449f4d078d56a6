"""A kernel prepared for execution: its blocks, registers, liveness and memory layout.

An entry and all functions it can call make one Code. Blocks are numbered in the order in which
diverged lanes should be run, the lowest first: callees before callers, each in text order.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from sparsekit.emulator.async_registers import asynchronous_slots
from sparsekit.emulator.faults import UnsupportedError
from sparsekit.emulator.layout import Layout, lay_out
from sparsekit.emulator.liveness import live_registers
from sparsekit.emulator.table import Matched, is_full, membermask, needs_whole_warp
from sparsekit.ptx import Function, Instruction, Module, control_flow
from sparsekit.ptx.definedness import maybe_undefined_reads
from sparsekit.ptx.operands import Arguments, Immediate, Operand, Register, Symbol

_WIDEST_CELL = 16
_ASYNCHRONOUS = frozenset({"mbarrier", "wgmma", "tcgen05", "clusterlaunchcontrol"})
_WIDTHS = {"pred": 0, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2}
_WIDTHS |= {"b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4}
_WIDTHS |= {"b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16}


@dataclass(frozen=True, slots=True)
class Slot:
    """A register's place in the register file. width: bytes, 0 for a predicate."""

    index: int
    width: int
    name: str


@dataclass(slots=True)
class Block:
    """Instructions start ... stop-1 of the Code, run as one.

    last: the instruction that the scheduler completes, if the block ends in one. converge: an
    instruction needs all lanes of a warp; warpgroup: all warps of a warpgroup. members: the
    operand that names those it needs, for a block that begins with it. live_in, live_out: bit i
    stands for slot i.
    """

    number: int
    function: int
    start: int
    stop: int
    last: Matched | None = None
    converge: bool = False
    warpgroup: bool = False
    members: Operand | None = None
    returned: Matched | None = None
    successors: tuple[int, ...] = ()
    live_in: int = 0
    live_out: int = 0


@dataclass
class Code:
    """All that running an entry needs, apart from its memory and arguments.

    functions: the entry last. functions_first: by function, the number of its first block.
    """

    module: Module
    entry: Function
    functions: tuple[Function, ...]
    matched: list[Matched]
    blocks: list[Block]
    first_block: dict[str, int]
    labels: list[dict[str, int]]
    layout: Layout
    slots: dict[tuple[int, str], Slot] = field(default_factory=dict)
    suspects: dict[int, set[str]] = field(default_factory=dict)

    def slot(self, function: int, register: Register) -> Slot:
        key = (function, register.name)
        found = self.slots.get(key)
        if found is None:
            found = Slot(len(self.slots), _WIDTHS[register.type], register.name)
            self.slots[key] = found
        return found

    def register_name(self, slot: int) -> str:
        """The register at a place in the register file, for a message."""
        return next(s.name for s in self.slots.values() if s.index == slot)

    @cached_property
    def shared_cell(self) -> int:
        """The bytes of a cell of shared memory that no access splits, at most 16."""
        return min((access_bytes(m) for m in self.matched), default=_WIDEST_CELL)

    @cached_property
    def is_asynchronous(self) -> bool:
        """Whether mbarriers, bulk copies or the async proxy's matrix instructions occur."""
        return any(
            m.form.base in _ASYNCHRONOUS or (m.form.base == "cp" and m["bulk"] != "")
            for m in self.matched
        )

    @cached_property
    def controls_launch(self) -> bool:
        """Whether blocks that have not started may be cancelled."""
        return any(m.form.base == "clusterlaunchcontrol" for m in self.matched)

    @cached_property
    def copies_in_bulk(self) -> bool:
        return any(m.form.base == "cp" and m["bulk"] for m in self.matched)

    @cached_property
    def uses_tensor_memory(self) -> bool:
        return any(m.form.base == "tcgen05" for m in self.matched)

    @cached_property
    def asynchronous_slots(self) -> frozenset[int]:
        """The slots that tensor cores read or write by themselves, and those copied from them."""
        return asynchronous_slots(self)

    @cached_property
    def suspect_slots(self) -> frozenset[int]:
        """The slots of which each read must be checked for a write before it."""
        found = set()
        for index, names in self.suspects.items():
            function = self.function_of(index)
            found |= {self.slots[function, name].index for name in names}
        return frozenset(found)

    def function_of(self, index: int) -> int:
        """The number of the function that an instruction stands in."""
        return next(b.function for b in self.blocks if b.start <= index < b.stop)


def make_code(module: Module, entry: Function) -> Code:
    """Prepare an entry. Raises UnsupportedError for what the instruction table does not hold."""
    from sparsekit.emulator.isa import TABLE

    functions = tuple(_callees_first(module, entry))
    matched: list[Matched] = []
    blocks: list[Block] = []
    first_block: dict[str, int] = {}
    labels: list[dict[str, int]] = []
    code = Code(
        module, entry, functions, matched, blocks, first_block, labels, lay_out(module, functions)
    )
    noreturn = module.noreturn
    for number, function in enumerate(functions):
        base = len(matched)
        matched += [TABLE.match(i, base + k) for k, i in enumerate(function.instructions)]
        first_block[function.name] = len(blocks)
        _add_blocks(code, number, function, base, noreturn)
        slots = code.slots
        for instruction in function.instructions:
            for register in (*instruction.reads, *instruction.writes):
                if (number, register.name) not in slots:
                    code.slot(number, register)
    live_registers(code)
    for number, function in enumerate(functions):
        _find_suspects(code, number, function, noreturn)
    return code


def _find_suspects(code: Code, number: int, function: Function, noreturn: Container[str]) -> None:
    """Note the reads that some path reaches without a write before."""
    first = code.first_block[function.name]
    if not code.blocks[first].live_in:  # whatever is read has been written
        return
    base = code.blocks[first].start
    for index, name in maybe_undefined_reads(function, control_flow(function, noreturn)):
        code.suspects.setdefault(base + index, set()).add(name)


def _callees_first(module: Module, entry: Function) -> Iterator[Function]:
    """The defined functions that the entry can reach, each after those it calls, the entry last."""
    by_name = {f.name: f for f in module.functions}
    by_name |= {alias: by_name[name] for alias, name in module.aliases.items()}
    done: set[str] = set()

    def visit(function: Function, path: tuple[str, ...]) -> Iterator[Function]:
        if function.name in path:
            raise UnsupportedError("recursion is not modelled", function.line, function.name)
        if function.name in done:
            return
        done.add(function.name)
        for instruction in function.instructions:
            for operand in instruction.operands:
                callee = by_name.get(operand.name) if isinstance(operand, Symbol) else None
                if callee is not None and callee.defined:
                    yield from visit(callee, (*path, function.name))
        yield function

    yield from visit(entry, ())


def _add_blocks(
    code: Code, number: int, function: Function, base: int, noreturn: Container[str]
) -> None:
    starts = set(control_flow(function, noreturn).starts) | {0}
    members: dict[int, Operand] = {}
    for index, instruction in enumerate(function.instructions):
        matched = code.matched[base + index]
        if matched.form.control is not None:
            starts.add(index + 1)
        mask = membermask(instruction)
        if mask is not None and not is_full(mask):
            starts.add(index)
            members[index] = mask
    size = len(function.instructions)
    cuts = sorted(s for s in starts if s < size)
    number_of: dict[int, int] = {}
    fresh: list[Block] = []
    for start, stop in zip(cuts, [*cuts[1:], size], strict=True):
        block = Block(len(code.blocks) + len(fresh), number, base + start, base + stop)
        inside = code.matched[base + start : base + stop]
        block.last = inside[-1] if inside[-1].form.control else None
        block.members = members.get(start)
        block.converge = any(needs_whole_warp(m.instruction) for m in inside)
        block.warpgroup = any(m.form.base == "wgmma" and m["mma_async"] for m in inside)
        number_of[start] = block.number
        fresh.append(block)
        if block.last is not None and block.last.form.base == "call":
            landing = Block(block.number + 1, number, base + stop, base + stop)
            landing.returned = block.last
            fresh.append(landing)
    # an empty block ends each function, for labels at its end and for falling out of it
    end = Block(len(code.blocks) + len(fresh), number, base + size, base + size)
    number_of[size] = end.number
    code.labels.append(
        {name: number_of[at] for name, at in function.labels.items() if at in number_of}
    )
    for block in fresh:
        block.successors = tuple(_successors(code, block))
    code.blocks += [*fresh, end]


def _successors(code: Code, block: Block) -> Iterator[int]:
    following = block.number + 1
    if block.last is None:
        yield following
        return
    instruction = block.last.instruction
    if instruction.opcode.base == "call":
        yield following
        if instruction.predicate is not None:
            yield following + 1
        return
    function = code.functions[block.function]
    base = instruction.opcode.base
    labels = code.labels[block.function]
    if base == "bra":
        yield labels[str(instruction.operands[0])]
    elif base == "brx":
        table = function.branch_targets[str(instruction.operands[-1])]
        yield from (labels[name] for name in table)
    if instruction.predicate is not None or base not in ("bra", "brx", "ret", "exit", "trap"):
        yield following


def access_bytes(matched: Matched) -> int:
    """How many bytes of shared memory an instruction may touch at once; the widest for none."""
    base, space = matched.form.base, matched["space"].partition("::")[0]
    if base in ("ld", "st", "atom", "red") and space in ("shared", ""):
        width = _WIDTHS.get(matched["t"], _WIDTHS.get(matched["t"].removesuffix("x2"), 1) * 2)
        width = {"f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4}.get(matched["t"], width)
        count = int(matched["vec"].removeprefix("v") or 1) if base in ("ld", "st") else 1
        return min(width * count, _WIDEST_CELL)
    if base == "mbarrier":
        return 8
    if base == "tcgen05" and matched["alloc"]:
        return 4
    if base == "cp" and matched["async"] and not matched["bulk"] and len(matched.operands) > 2:
        size = matched.operands[2]
        return size.value if isinstance(size, Immediate) else _WIDEST_CELL
    return _WIDEST_CELL


def call_target(instruction: Instruction) -> Operand:
    """What a call names: a Symbol, or the Register of an indirect one."""
    return next(o for o in instruction.operands if not isinstance(o, Arguments))
