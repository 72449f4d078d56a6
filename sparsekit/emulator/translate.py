"""Blocks to Python functions, once each; what they share with numpy under short names."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from sparsekit.emulator.code import Block, Code
from sparsekit.emulator.isa.control import take_results
from sparsekit.emulator.source import WIDTH_BYTES
from sparsekit.emulator.writer import Writer

BlockFunction = Callable[[Any], tuple[Any, ...]]
Binder = Callable[[Any], BlockFunction]

NAMES: dict[str, Any] = {
    **{name: np.dtype(name) for name in WIDTH_BYTES if name != "?"},
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "where": np.where,
    "copyto": np.copyto, "maximum": np.maximum, "minimum": np.minimum, "fmax": np.fmax,
    "fmin": np.fmin, "isnan": np.isnan, "ascontiguousarray": np.ascontiguousarray,
    "isfinite": np.isfinite, "isinf": np.isinf, "copysign": np.copysign,
}  # fmt: skip
"""What every block's source may name."""


def translate(code: Code, block: Block, masked: bool) -> Binder:
    """The block's function, still to be bound to a range of threads.

    Raises UnsupportedError for an instruction that its form turns out not to model.
    """
    writer = Writer(code, block, masked)
    results: tuple[str, ...] = ()
    if block.returned is not None:
        writer.matched = block.returned
        take_results(writer, block.returned)
    for matched in code.matched[block.start : block.stop]:
        if matched.form.emit is None:
            continue
        writer.begin(matched)
        emitted = matched.form.emit(writer, matched)
        if matched is block.last:
            results = emitted or ()
    source = writer.source(results)
    name = f"<{code.entry.name} block {block.number}>"
    compiled: CodeType = compile(source, name, "exec", dont_inherit=True, optimize=1)
    scope: dict[str, Any] = {**NAMES, **writer.env}
    exec(compiled, scope)
    binder: Binder = scope["bind"]
    return binder
