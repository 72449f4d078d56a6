"""Where variables lie: shared memory of a block, local memory of a thread, parameters.

Source: PTX ISA, State Spaces. Shared memory starts at an offset, so that a null pointer is out of
bounds; dynamic shared memory comes last. Local memory holds .local variables and the .param
variables of calls, one frame per function (there is no recursion).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparsekit.ptx import Function, Module, Variable

SHARED_START = 1024  # bytes: what sm_90 and later reserve for the system
CLUSTER_SHIFT = 24  # a block's window of shared memory within its cluster: rank << 24
CLUSTER_OFFSET = (1 << CLUSTER_SHIFT) - 1
MODULE = -1
_FRAME_ALIGN = 16


@dataclass
class Layout:
    """Offsets of symbols in bytes; shared and local by (function number, name).

    The module's own symbols have the function number MODULE. param: (offset, size). dynamic_start:
    where dynamic shared memory begins. module_symbols: names in .global and .const, which the
    memory places.
    """

    shared: dict[tuple[int, str], int] = field(default_factory=dict)
    local: dict[tuple[int, str], int] = field(default_factory=dict)
    param: dict[str, tuple[int, int]] = field(default_factory=dict)
    module_symbols: dict[str, Variable] = field(default_factory=dict)
    static_end: int = SHARED_START
    dynamic_start: int = SHARED_START
    local_bytes: int = 0
    param_bytes: int = 0


def lay_out(module: Module, functions: tuple[Function, ...]) -> Layout:
    """Place everything that the functions (the entry last) can name."""
    layout = Layout()
    dynamic: list[tuple[int, Variable]] = []
    shared = [(MODULE, v) for v in module.globals]
    shared += [(number, v) for number, f in enumerate(functions) for v in f.variables]
    for number, variable in shared:
        if variable.space != "shared":
            continue
        if variable.linkage == "extern" or variable.size_bytes == 0:
            dynamic.append((number, variable))
            continue
        start = _align(layout.static_end, variable.align_bytes)
        layout.shared[number, variable.name] = start
        layout.static_end = start + variable.size_bytes
    layout.dynamic_start = layout.static_end
    if dynamic:
        most = max(_FRAME_ALIGN, *(v.align_bytes for _, v in dynamic))
        layout.dynamic_start = _align(layout.static_end, most)
        layout.shared |= {(number, v.name): layout.dynamic_start for number, v in dynamic}
    for variable in module.globals:
        if variable.space in ("global", "const"):
            layout.module_symbols[variable.name] = variable
    for number, function in enumerate(functions):
        _place_frame(layout, number, function)
    for param in functions[-1].params:
        start = _align(layout.param_bytes, max(param.align_bytes, 1))
        layout.param[param.name] = (start, param.size_bytes)
        layout.param_bytes = start + param.size_bytes
    layout.local_bytes = _align(layout.local_bytes, _FRAME_ALIGN)
    return layout


def _place_frame(layout: Layout, number: int, function: Function) -> None:
    sizes = [
        (v.name, v.size_bytes, v.align_bytes)
        for v in function.variables
        if v.space in ("local", "param")
    ]
    if not function.is_entry:
        formals = (*function.returns, *function.params)
        sizes += [(p.name, p.size_bytes, p.align_bytes) for p in formals if p.space == "param"]
    for name, size, align in sizes:
        start = _align(layout.local_bytes, max(align, 1))
        layout.local[number, name] = start
        layout.local_bytes = start + size


def _align(offset: int, align: int) -> int:
    return -(-offset // align) * align
