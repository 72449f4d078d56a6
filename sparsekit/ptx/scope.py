"""Names within a function: nested scopes, register families, special registers, labels.

A name declared in a nested `{ }` gets the number of its scope, "t0.3", so that one flat list of
instructions has one name per register, variable and label. No declared name can hold a dot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparsekit.ptx.errors import OperandError
from sparsekit.ptx.module import RegisterDeclaration
from sparsekit.ptx.operands import Operand, Register, Special, Symbol, Vector

_COMPONENTS = "xyzw"
_COLOURS = str.maketrans("rgba", _COMPONENTS)  # v.r is another name of v.x
_TRIPLES = ("tid", "ntid", "ctaid", "nctaid")
_CLUSTER_TRIPLES = ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_SINGLE = """
    laneid warpid nwarpid smid nsmid gridid is_explicit_cluster cluster_ctarank cluster_nctarank
    lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt
    clock clock_hi clock64 globaltimer globaltimer_lo globaltimer_hi
    reserved_smem_offset_begin reserved_smem_offset_end reserved_smem_offset_cap
    reserved_smem_offset_0 reserved_smem_offset_1
    total_smem_size aggr_smem_size dynamic_smem_size current_graph_exec
    perctamemoryoffset perctamemorysize
"""
_PERFORMANCE_COUNTERS, _ENVIRONMENT_REGISTERS = 8, 32

SPECIAL_REGISTERS = frozenset(
    [f"%{name}" for name in (*_SINGLE.split(), *_TRIPLES, *_CLUSTER_TRIPLES)]
    + [f"%{name}.{axis}" for name in (*_TRIPLES, *_CLUSTER_TRIPLES) for axis in _COMPONENTS]
    + [f"%pm{i}{width}" for i in range(_PERFORMANCE_COUNTERS) for width in ("", "_64")]
    + [f"%envreg{i}" for i in range(_ENVIRONMENT_REGISTERS)]
    + ["WARP_SZ"]
)


@dataclass(frozen=True, slots=True)
class Parsed:
    """An operand with what each use of it needs again."""

    operand: Operand
    registers: tuple[Register, ...]
    writable: bool


def component(vector: Vector, name: str) -> Operand | None:
    """The element of a vector register that v.x (or v.r) means; None where there is none."""
    index = _COMPONENTS.find(name.translate(_COLOURS)) if len(name) == 1 else -1
    return vector.elements[index] if 0 <= index < len(vector.elements) else None


class Scope:
    """One `{ }` of a function body; the outermost has no parent and number 0.

    operands keeps the parsed form of operand texts until the scope declares another name.
    """

    def __init__(self, number: int, parent: Scope | None, symbols: Mapping[str, Symbol]) -> None:
        self.parent = parent
        self.operands: dict[str, Parsed] = {}
        self._number = number
        self._suffix = f".{number}" if number else ""
        self._symbols = symbols
        self._names: dict[str, Operand] = {}
        self._families: dict[str, RegisterDeclaration] = {}
        self._labels: dict[str, str] = {}

    def declare_register(self, declared: RegisterDeclaration) -> RegisterDeclaration:
        """Enter `.reg` and return it with the scope it stands in."""
        if declared.count is None:
            self._enter(declared.name, self._register(declared.name, declared))
        elif declared.name in self._families:
            raise OperandError(f"{declared.name}<n> is declared twice in one scope")
        else:
            self._families[declared.name] = declared
        self.operands.clear()
        return replace(declared, scope=self._number)

    def declare_symbol(self, name: str) -> str:
        """Enter a variable or parameter and return its name in the flat list."""
        self._enter(name, Symbol(name + self._suffix))
        self.operands.clear()
        return name + self._suffix

    def declare_label(self, name: str) -> str:
        """Enter a label or table and return its name in the flat list."""
        if name in self._labels:
            raise OperandError(f"label {name} stands twice in one scope")
        self._labels[name] = name + self._suffix
        return self._labels[name]

    def label(self, name: str) -> str:
        """The flat name of a label, sought outwards. Raises OperandError when there is none."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._labels:
                return scope._labels[name]
            scope = scope.parent
        raise OperandError(f"no label {name} in this function")

    def resolve(self, name: str) -> Operand:
        """What a name stands for here, sought outwards.

        Raises OperandError when nothing declares it.
        """
        if name in SPECIAL_REGISTERS:
            return Special(name)
        scope: Scope | None = self
        while scope is not None:
            found = scope._names.get(name) or scope._member(name)
            if found is not None:
                return found
            scope = scope.parent
        if name in self._symbols:
            return self._symbols[name]
        kind = "register" if name.startswith("%") else "name"
        raise OperandError(f"undeclared {kind} {name}")

    def _member(self, name: str) -> Operand | None:
        """The register of a family `prefix<n>` that name means: %r12 of %r<20>."""
        digits = len(name) - len(name.rstrip("0123456789"))
        for length in range(1, digits + 1):
            prefix, number = name[:-length], name[-length:]
            family = self._families.get(prefix)
            if family is None or (number[0] == "0" and length > 1):
                continue
            if int(number) < (family.count or 0):
                self._names[name] = self._register(name, family)
                return self._names[name]
        return None

    def _register(self, name: str, declared: RegisterDeclaration) -> Operand:
        flat = name + self._suffix
        if declared.vector == 1:
            return Register(flat, declared.type)
        elements = _COMPONENTS[: declared.vector]
        return Vector(tuple(Register(f"{flat}.{axis}", declared.type) for axis in elements))

    def _enter(self, name: str, meaning: Operand) -> None:
        if name in self._names or self._member(name) is not None:
            raise OperandError(f"{name} is declared twice in one scope")
        self._names[name] = meaning
