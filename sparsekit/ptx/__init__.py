"""PTX as data: a strict parser, control flow, and a lint. Source: PTX ISA 8.7 to 9.4."""

from sparsekit.ptx.cfg import (
    Block,
    ControlFlow,
    control_flow,
    immediate_dominators,
    immediate_postdominators,
)
from sparsekit.ptx.errors import PtxError
from sparsekit.ptx.lint import USE_BEFORE_DEFINITION, Finding, lint
from sparsekit.ptx.module import (
    Function,
    Instruction,
    Loc,
    Module,
    Param,
    Variable,
)
from sparsekit.ptx.parser import parse

__all__ = [
    "USE_BEFORE_DEFINITION",
    "Block",
    "ControlFlow",
    "Finding",
    "Function",
    "Instruction",
    "Loc",
    "Module",
    "Param",
    "PtxError",
    "Variable",
    "control_flow",
    "immediate_dominators",
    "immediate_postdominators",
    "lint",
    "parse",
]
