"""PTX ISA, Control Flow Instructions; Miscellaneous Instructions: brkpt, trap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparsekit.emulator.code import call_target
from sparsekit.emulator.isa.printing import print_text
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer
from sparsekit.ptx import Param
from sparsekit.ptx.operands import Arguments, Operand, Register, Symbol

if TYPE_CHECKING:
    from sparsekit.emulator.convoy import Convoy
    from sparsekit.emulator.machine import Machine

CHAPTER = Chapter("Control Flow Instructions")


def both(convoy: Convoy, taken: Any) -> tuple[Any, Any]:
    """(lanes that take part, lanes of the convoy that do not); None stands for all, and for none.

    taken is the mask that the block's function gave.
    """
    if taken is None or np.count_nonzero(taken) == convoy.n:
        return None, None
    present = convoy.mask
    rest = ~taken if present is None else present & ~taken
    return taken, rest if np.count_nonzero(rest) else None


def _jump(machine: Machine, convoy: Convoy, m: Matched, values: tuple[Any, ...]) -> None:
    block = machine.code.blocks[convoy.block]
    taken, rest = both(convoy, values[0])
    machine.move(convoy, taken, block.successors[0])
    if rest is not None:
        machine.move(convoy, rest, convoy.block + 1)


@CHAPTER.form("bra $uni", 1, control=_jump)
def bra(w: Writer, m: Matched) -> tuple[str, ...]:
    return (w.mask,)


def _jump_by_index(machine: Machine, convoy: Convoy, m: Matched, values: tuple[Any, ...]) -> None:
    block = machine.code.blocks[convoy.block]
    function = machine.code.functions[block.function]
    labels = machine.code.labels[block.function]
    targets = [labels[name] for name in function.branch_targets[str(m.operands[-1])]]
    taken, rest = both(convoy, values[0])
    active = convoy.active(taken)
    index = values[1]
    bad = active & (index >= len(targets))
    if np.count_nonzero(bad):
        lane = convoy.lo + int(bad.argmax())
        machine.fault("trap", f"brx.idx past its {len(targets)} targets", m.index, lane)
    for position, target in enumerate(targets):
        machine.move(convoy, active & (index == position), target)
    if rest is not None:
        machine.move(convoy, rest, convoy.block + 1)


@CHAPTER.form("brx idx $uni", 2, control=_jump_by_index)
def brx(w: Writer, m: Matched) -> tuple[str, ...]:
    return w.mask, w.read(m.operands[0], "u4")


def _return(machine: Machine, convoy: Convoy, m: Matched, values: tuple[Any, ...]) -> None:
    taken, rest = both(convoy, values[0])
    if rest is not None:
        machine.move(convoy, rest, convoy.block + 1)
    if m.form.base == "exit":
        machine.exit(convoy, taken)
    else:
        machine.calls.leave(convoy, taken)


@CHAPTER.form("ret $uni", 0, control=_return)
@CHAPTER.form("exit", 0, control=_return)
def ret(w: Writer, m: Matched) -> tuple[str, ...]:
    return (w.mask,)


def _trap(machine: Machine, convoy: Convoy, m: Matched, values: tuple[Any, ...]) -> None:
    taken, rest = both(convoy, values[0])
    active = convoy.active(taken)
    if np.count_nonzero(active):
        thread = convoy.lo + int(active.argmax())
        machine.fault("trap", f"{m.form.base} is executed", m.index, thread)
    machine.move(convoy, rest, convoy.block + 1)


@CHAPTER.form("trap", 0, control=_trap)
@CHAPTER.form("brkpt", 0, control=_trap)
def trap(w: Writer, m: Matched) -> tuple[str, ...]:
    return (w.mask,)


def _call(machine: Machine, convoy: Convoy, m: Matched, values: tuple[Any, ...]) -> None:
    taken, rest = both(convoy, values[0])
    if rest is not None:
        machine.move(convoy, rest, convoy.block + 2)  # past the block that takes the results
    target = call_target(m.instruction)
    if isinstance(target, Symbol):
        name = machine.code.module.aliases.get(target.name, target.name)
        if name in machine.code.first_block:
            machine.calls.enter(convoy, taken, name, convoy.block + 1)
        else:
            _call_of_system(machine, convoy, taken, name, m)
        return
    active = convoy.active(taken)
    for address in np.unique(values[1][active]):
        callee = machine.storage.function_at(int(address))
        lanes = active & (values[1] == address)
        if callee is None:
            text = f"an indirect call of {int(address):#x}, which is no function"
            machine.fault("bounds", text, m.index, convoy.lo + int(lanes.argmax()))
        else:
            machine.calls.enter(convoy, lanes, callee, convoy.block + 1)


def _call_of_system(machine: Machine, convoy: Convoy, taken: Any, name: str, m: Matched) -> None:
    """Go on after a function of the driver; __assertfail ends the launch."""
    active = convoy.active(taken)
    if name != "__assertfail" or not np.count_nonzero(active):
        machine.move(convoy, taken, convoy.block + 2)
        return
    machine.fault("assert", f"a call of {name}", m.index, convoy.lo + int(active.argmax()))


@CHAPTER.form("call $uni", (1, 2, 3, 4), control=_call)
def call(w: Writer, m: Matched) -> tuple[str, ...]:
    """Arguments go to the callee's frame before, results come from it after the call."""
    target = call_target(m.instruction)
    groups = [o for o in m.operands if isinstance(o, Arguments)]
    before = bool(groups) and m.operands[0] is groups[0]
    results = groups[0].operands if before else ()
    arguments = groups[-1].operands if groups and not (before and len(groups) == 1) else ()
    if isinstance(target, Register):
        if results or arguments:
            raise m.unsupported("an indirect call with arguments is not modelled")
        return w.mask, w.read(target, "u8")
    names = {f.name: i for i, f in enumerate(w.code.functions)}
    assert isinstance(target, Symbol)
    name = w.code.module.aliases.get(target.name, target.name)
    if name not in names:
        return _system_call(w, m, name, arguments, results)
    callee = w.code.functions[names[name]]
    _check_counts(m, arguments, callee.params)
    _check_counts(m, results, callee.returns)
    for argument, formal in zip(arguments, callee.params, strict=True):
        source = _frame_offset(w, m, w.block.function, argument)
        into = w.code.layout.local[names[name], formal.name]
        w.line(f"{w.fn(copy_local)}(L, {source}, {into}, {formal.size_bytes}, {w.mask})")
    return (w.mask,)


def take_results(w: Writer, m: Matched) -> None:
    """What happens when a call returns: its results go to the caller's frame."""
    target = call_target(m.instruction)
    results = m.operands[0]
    if not isinstance(results, Arguments) or results is target or len(m.operands) == 1:
        return
    if not isinstance(target, Symbol):
        return
    name = w.code.module.aliases.get(target.name, target.name)
    numbers = {f.name: i for i, f in enumerate(w.code.functions)}
    if name not in numbers:
        return
    callee = w.code.functions[numbers[name]]
    for result, formal in zip(results.operands, callee.returns, strict=True):
        source = w.code.layout.local[numbers[name], formal.name]
        into = _frame_offset(w, m, w.block.function, result)
        w.line(f"{w.fn(copy_local)}(L, {source}, {into}, {formal.size_bytes}, {w.mask})")


def copy_local(convoy: Convoy, source: int, target: int, size: int, mask: Any) -> None:
    """Copy bytes within each thread's own memory."""
    storage = convoy.machine.storage
    content = storage.table("local", 1, 1)[: storage.geometry.threads * storage.local_bytes]
    frames = content.reshape(-1, storage.local_bytes)[convoy.lo : convoy.hi]
    if mask is None:
        frames[:, target : target + size] = frames[:, source : source + size]
    else:
        frames[mask, target : target + size] = frames[mask, source : source + size]


def _frame_offset(w: Writer, m: Matched, function: int, operand: Operand) -> int:
    if isinstance(operand, Symbol) and (function, operand.name) in w.code.layout.local:
        return w.code.layout.local[function, operand.name] + operand.offset_bytes
    raise m.unsupported(f"a call parameter {operand}, which is no .param variable")


def _system_call(
    w: Writer, m: Matched, name: str, arguments: tuple[Operand, ...], results: tuple[Operand, ...]
) -> tuple[str, ...]:
    """What the driver provides: the end of a failed assertion, and printing."""
    if name == "vprintf" and len(arguments) == 2:
        places = [_frame_offset(w, m, w.block.function, a) for a in (*arguments, *results)]
        result = places[2] if results else None
        w.line(f"{w.fn(print_text)}(L, {places[0]}, {places[1]}, {result}, {w.mask})")
    elif name != "__assertfail":
        raise m.unsupported(f"{name} has no body in this module")
    return (w.mask,)


def _check_counts(m: Matched, given: tuple[Operand, ...], formal: tuple[Param, ...]) -> None:
    if len(given) != len(formal):
        raise m.unsupported("a call with another number of parameters than its function")
