"""A kernel as its `spec.py` describes it.

One kernel folder holds one source, compiled into an artifact per variant (the author's constants),
instance (what else the compiler needs fixed), arch and toolchain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from sparsekit.model.arch import (
    ALL_CAPABILITIES,
    Arch,
    Capability,
    features_of,
    format_capability,
    parse_arch,
)
from sparsekit.model.call import Call
from sparsekit.model.tensor_map import MAP_BYTES, is_map

Lang = Literal["cuda", "triton"]
Constant = int | float | bool | str
LANG_PREFIXES: dict[Lang, str] = {"cuda": "cu", "triton": "triton"}

# Plain code for every capability; the suffixed targets are built only when asked for by name.
PORTABLE_CUDA_TARGETS: tuple[str, ...] = tuple(
    str(Arch(*c, f)) for f in ("", "a", "f") for c in ALL_CAPABILITIES if f in features_of(c)
)
# Triton picks the suffix itself: none before 9.0, `a` from there on.
TRITON_TARGETS: tuple[str, ...] = tuple(
    str(Arch(*c, "a" if c >= (9, 0) else "")) for c in ALL_CAPABILITIES
)

ELEMENT_BYTES: dict[str, int] = {
    "i1": 1, "i8": 1, "u8": 1, "fp8e4nv": 1, "fp8e5": 1, "i16": 2, "u16": 2, "fp16": 2, "bf16": 2,
    "i32": 4, "u32": 4, "fp32": 4, "i64": 8, "u64": 8, "fp64": 8,
}  # fmt: skip
# What a tensor may consist of; the other types are of arguments only.
TENSOR_TYPES = frozenset(ELEMENT_BYTES) - {"u16", "u32", "u64"}
POINTER_BYTES = 8


@dataclass(frozen=True)
class Arg:
    """One run-time argument of an entry, in the order of its signature.

    type: `*bf16` (a pointer), `i32`, `i64`, `fp32`; `{kv}` stands for tensor kv's element type;
    `tensormap(AXES; BOX; SWIZZLE)` (`model.tensor_map`) is a map of the tensor that source names.
    source: what is passed: a tensor of the op, `tensor.stride(i)` in elements, a dim, a scalar, or
    a name in the launch's values or scratch; the argument's own name when left out.
    divisible_by: a promise made in every instance: the address in bytes, or the integer, is a
    multiple of it. only_if: an instance constant; when it is 0 the argument is not passed.
    """

    name: str
    type: str
    source: str = ""
    divisible_by: int = 1
    only_if: str = ""

    @property
    def bound_to(self) -> str:
        return self.source or self.name

    @property
    def is_pointer(self) -> bool:
        return self.type.startswith("*")

    @property
    def is_map(self) -> bool:
        return is_map(self.type)

    @property
    def is_tensor(self) -> bool:
        """Whether it stands for a tensor, so that its value is an address or follows from one."""
        return self.is_pointer or self.is_map


@dataclass(frozen=True)
class Entry:
    """One `__global__` or `@triton.jit` function of the source."""

    name: str
    args: tuple[Arg, ...]


@dataclass(frozen=True)
class Override:
    """Constants in place of a variant's where an arch or an instance needs others.

    constants: may hold num_warps and num_stages too. capabilities: where it holds; empty: on all.
    instance: constants that the instance must have; empty: in all.
    """

    constants: Mapping[str, Constant]
    capabilities: tuple[Capability, ...] = ()
    instance: Mapping[str, int] = field(default_factory=dict)

    def holds(self, capability: Capability, instance: Instance) -> bool:
        if self.capabilities and capability not in self.capabilities:
            return False
        return all(instance.constants.get(k) == v for k, v in self.instance.items())


@dataclass(frozen=True)
class Variant:
    """One set of the author's constants.

    constants: the compiler gets them. launch: integers that only the spec's functions read, as
    where one launch takes the place of another; variants that differ in nothing else share an
    artifact.
    num_warps and num_stages are Triton's; a CUDA kernel states its threads itself. overrides: what
    replaces them where; a later one wins over an earlier one.
    same_bits_as: the variant whose bits this one must give, checked by `verify --bitwise`: one of
    the kernel's own by its name, or `LANG/KERNEL:VARIANT`, of another kernel of the op.
    """

    name: str
    constants: Mapping[str, Constant] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2
    same_bits_as: str | None = None
    overrides: tuple[Override, ...] = ()
    launch: Mapping[str, int] = field(default_factory=dict)

    def at(self, capability: Capability, instance: Instance) -> Variant:
        """The variant as it is compiled for an arch of that capability and that instance."""
        if not self.overrides:
            return self
        changed = dict(self.constants)
        for override in self.overrides:
            if override.holds(capability, instance):
                changed.update(override.constants)
        warps = int(changed.pop("num_warps", self.num_warps))
        stages = int(changed.pop("num_stages", self.num_stages))
        return replace(self, constants=changed, num_warps=warps, num_stages=stages, overrides=())

    def constant(self, name: str) -> int:
        """An integer constant, for the grid."""
        return self.launch[name] if name in self.launch else int(self.constants[name])

    @property
    def compiled(self) -> tuple[object, ...]:
        """What the compiler gets."""
        return self.constants, self.num_warps, self.num_stages, self.overrides


@dataclass(frozen=True)
class Promise:
    """What the compiler was told of an argument; checked against every call before a launch."""

    arg: str
    divisible_by: int


@dataclass(frozen=True)
class Instance:
    """What else the compiler needs fixed.

    dtypes: element types by tensor. constants: facts of the call (`Call.fact`) by name.
    assume: promises beyond those of the arguments. default: built when nothing else is asked for.
    ones: integer arguments of a Triton kernel that are 1 and compiled as such, not passed.
    """

    dtypes: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    assume: tuple[Promise, ...] = ()
    default: bool = True
    ones: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A short name, unique within a kernel: `d_qk576`, `kv_fp32,out_bf16,aligned`."""
        parts = [f"{k}_{v}" for k, v in self.dtypes.items()]
        parts += [f"{k}{v}" for k, v in self.constants.items()]
        parts += ["aligned"] if self.assume else []
        parts += [f"{name}=1" for name in self.ones]
        return ",".join(parts) or "only"


@dataclass(frozen=True)
class Scratch:
    """A temporary buffer that a launch needs; the same name in two launches is the same buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """One launch of an entry. grid is in blocks; values feed arguments by name."""

    entry: str
    grid: tuple[int, int, int]
    values: Mapping[str, int | float] = field(default_factory=dict)
    scratch: tuple[Scratch, ...] = ()


def accepts_all(variant: Variant, call: Call) -> str | None:
    """The `reject` of a kernel that takes every call of its op."""
    return None


def never_preferred(call: Call) -> str | None:
    """The `prefer` of a kernel that waits its turn, however large the batch."""
    return None


@dataclass(frozen=True)
class Address:
    """How the command line names a kernel. kernel_dirs: `--kernels` that it needs beside that."""

    name: str
    kernel_dirs: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """A kernel folder: what to compile and how to launch it.

    targets: exact targets in order; the first of a capability is what a plain request builds, the
    others are built only when named. variants: the first accepted one is chosen when none is named.
    instances: in order of preference. launches(variant, call): what to launch, at least once.
    reject(variant, call): why the variant cannot take the call, else None. options: compiler
    options, all explicit. proven_on: the compute capabilities on which it has run right, as
    `9.0`; on another its first use is checked where a kernel after it could stand in, and None
    says that nobody keeps account. made_for: in words, the calls that it was made for and to which
    reject keeps it: `at most 32 heads`; for an op it is asked before kernels that take more.
    prefer(call): why the call should go to it before the kernels that are asked first, else None.
    Unlike reject and made_for it may look at the batch (the dim that `Op.batch` names), and so it
    is asked only where the bits of a row may depend on that: `batch_invariant=False`.
    name, folder and address, by which the command line finds it again, are filled in when the
    folder is found.
    """

    lang: Lang
    op: str
    source: str
    entries: tuple[Entry, ...]
    variants: tuple[Variant, ...]
    launches: Callable[[Variant, Call], tuple[Launch, ...]]
    targets: tuple[str, ...]
    instances: tuple[Instance, ...] = (Instance(),)
    reject: Callable[[Variant, Call], str | None] = accepts_all
    options: Mapping[str, Constant] = field(default_factory=dict)
    proven_on: tuple[str, ...] | None = None
    made_for: str = ""
    prefer: Callable[[Call], str | None] = never_preferred
    name: str = ""
    folder: Path = Path()
    address: Address | None = None

    @property
    def spec_file(self) -> Path:
        return self.folder / "spec.py"

    @property
    def qualified_name(self) -> str:
        """`cu/NAME` or `triton/NAME`: the reference that means this kernel and no op."""
        return f"{LANG_PREFIXES[self.lang]}/{self.name}"

    @property
    def archs(self) -> tuple[Arch, ...]:
        return tuple(parse_arch(t) for t in self.targets)

    def is_proven_on(self, device: Capability) -> bool:
        """Whether it has run right there, or nobody keeps account of that."""
        return self.proven_on is None or format_capability(device) in self.proven_on

    def variant(self, name: str) -> Variant | None:
        return next((v for v in self.variants if v.name == name), None)

    def variant_at(self, name: str, arch: Arch, instance: Instance) -> Variant:
        """The variant of that name as it is for an arch and instance."""
        named = next(v for v in self.variants if v.name == name)
        return named.at(arch.compute_capability, instance)

    def compiled_as(self, name: str) -> str:
        """The first variant that is compiled as that of the name is; artifacts bear its name."""
        named = next(v for v in self.variants if v.name == name)
        return next(v.name for v in self.variants if v.compiled == named.compiled)

    def targets_for(self, device: Capability) -> tuple[Arch, ...]:
        """The targets whose cubins run on the device: its own default first, the nearest next."""
        own = [a for a in self.archs if a.compute_capability == device]
        older = [a for a in self.archs if a not in own and a.runs_on(device)]
        return (*own, *sorted(older, reverse=True))

    def entry(self, name: str) -> Entry:
        return next(e for e in self.entries if e.name == name)

    def promises(self, entry: Entry, instance: Instance) -> tuple[Promise, ...]:
        """All promises about the entry's arguments, the stronger one where two speak of one."""
        strongest: dict[str, int] = {}
        own = [Promise(a.name, a.divisible_by) for a in entry.args if a.divisible_by > 1]
        names = {a.name for a in passed_args(entry, instance)}
        for promise in (*own, *instance.assume):
            if promise.arg in names:
                known = strongest.get(promise.arg, 1)
                strongest[promise.arg] = max(known, promise.divisible_by)
        return tuple(Promise(a, d) for a, d in strongest.items())


def passed_args(entry: Entry, instance: Instance) -> tuple[Arg, ...]:
    """The arguments that the instance passes, element types filled in."""
    return tuple(
        replace(a, type=a.type.format_map(instance.dtypes)) if "{" in a.type else a
        for a in entry.args
        if a.name not in instance.ones and (not a.only_if or instance.constants.get(a.only_if))
    )


def type_bytes(arg_type: str) -> int:
    """The size in bytes of an argument of that type, as the kernel receives it."""
    if arg_type.startswith("*"):
        return POINTER_BYTES
    if is_map(arg_type):
        return MAP_BYTES
    return ELEMENT_BYTES[arg_type]
