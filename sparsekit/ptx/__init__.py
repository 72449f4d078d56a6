"""PTX as data: a strict parser, control flow, and a lint. Source: PTX ISA 8.7 to 9.4."""

from sparsekit.ptx.cfg import (
    Block,
    ControlFlow,
    control_flow,
)
from sparsekit.ptx.errors import PtxError
from sparsekit.ptx.finding import Finding
from sparsekit.ptx.limits import BEYOND_ARCH
from sparsekit.ptx.lint import USE_BEFORE_DEFINITION, lint
from sparsekit.ptx.module import (
    Function,
    Instruction,
    Loc,
    Module,
    Param,
    Variable,
)
from sparsekit.ptx.parser import parse
from sparsekit.ptx.partners import NO_PARTNER

__all__ = [
    "BEYOND_ARCH",
    "NO_PARTNER",
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
    "lint",
    "parse",
]
