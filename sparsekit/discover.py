"""From names, wildcards and paths to kernels and ops.

A kernel folder holds `spec.py` and one source; it may bring `op.py` and `reference.py`. Shipped
folders, and folders that the user names, are scanned; the working directory never is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from sparsekit.argument_sources import check_argument_sources
from sparsekit.errors import SpecError, ToolchainError, UsageError
from sparsekit.files import expanded, is_folder
from sparsekit.model.kernel import LANG_PREFIXES, Address, Kernel
from sparsekit.model.op import Case, Op
from sparsekit.model.reference import Reference, parse_reference
from sparsekit.model.toolchain import COMPILER_NAMES
from sparsekit.model.validate import validate_against_op, validate_kernel, validate_op
from sparsekit.revisions import folder_at
from sparsekit.spec_file import ask, read_object

_PACKAGE = Path(__file__).resolve().parent
_LANGS = {prefix: lang for lang, prefix in LANG_PREFIXES.items()}


@dataclass(frozen=True)
class Broken:
    """A kernel folder that cannot be used, and why."""

    folder: Path
    reason: str
    exit_code: int = SpecError.exit_code


@dataclass(frozen=True)
class Choice:
    """What a reference means: a kernel, those of its variants that were named, a toolchain id.

    by_op: the reference named the op, so a command may choose among the kernels that compute it.
    revision: the commit that the kernel's sources are from; None for those that lie here.
    """

    kernel: Kernel
    op: Op
    variants: tuple[str, ...]
    toolchain: str | None = None
    by_op: bool = False
    revision: str | None = None


def shipped_folder(name: str) -> Path:
    """`kernels_cu` or `kernels_triton`: inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def _shipped_roots() -> tuple[Path, ...]:
    return shipped_folder("kernels_cu"), shipped_folder("kernels_triton")


def only_op(choices: Sequence[Choice], reference: str) -> Op:
    """The op of all choices. Raises UsageError where they are of several."""
    ops = {choice.op.name: choice.op for choice in choices}
    if len(ops) != 1:
        raise UsageError(f"{reference!r} means several ops, {', '.join(ops)}; name one")
    return choices[0].op


class Catalog:
    """The kernels and ops at hand, read on first use. revisions: where sources of other git
    revisions are laid out; without it no reference may name one."""

    def __init__(
        self, extra: Sequence[Path] = (), origin: str = "--kernels", revisions: Path | None = None
    ) -> None:
        """extra: folders beside the shipped ones. origin: where the user named them."""
        self._extra, self._origin, self._revisions = tuple(extra), origin, revisions

    @cached_property
    def _folders(self) -> tuple[Path, ...]:
        found: list[Path] = []
        for root in (*_shipped_roots(), *self._extra):
            if not root.is_dir():
                raise UsageError(f"{self._origin}: {root}: expected a folder of kernel folders")
            here = [root] if (root / "spec.py").is_file() else _kernel_folders(root)
            if not here:
                raise UsageError(
                    f"{self._origin}: {root}: there is no spec.py in it, nor in a folder in it"
                )
            found += here
        return tuple(dict.fromkeys(found))

    @cached_property
    def _read(self) -> tuple[tuple[Kernel, ...], tuple[Broken, ...]]:
        kernels: list[Kernel] = []
        broken: list[Broken] = []
        for folder in self._folders:
            try:
                kernel = self.kernel_in(folder)
                self.op_of(kernel)
                kernels.append(kernel)
            except SpecError as error:
                broken.append(Broken(folder, str(error)))
        return tuple(kernels), tuple(broken)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return self._read[0]

    @property
    def broken(self) -> tuple[Broken, ...]:
        return self._read[1]

    @cached_property
    def ops(self) -> dict[str, Op]:
        """Ops by name: the shipped ones, then those that kernel folders bring."""
        return {**self._shipped_ops, **{k.op: self.op_of(k) for k in self.kernels}}

    @cached_property
    def _shipped_ops(self) -> dict[str, Op]:
        files = sorted((_PACKAGE / "ops").glob("*/op.py"))
        return {file.parent.name: _read_op(file, file.parent.name) for file in files}

    @cached_property
    def _brought_ops(self) -> dict[str, Path]:
        """op.py of the kernel folders at hand, by the op's name; the first folder's of a name."""
        found: dict[str, Path] = {}
        for folder in self._folders:
            if (folder / "op.py").is_file():
                with suppress(SpecError):
                    found.setdefault(self.kernel_in(folder).op, folder / "op.py")
        return found

    def kernel_in(self, folder: Path) -> Kernel:
        """The kernel of one folder. Raises SpecError with the reason when it cannot be used."""
        kernel = read_object(folder / "spec.py", "KERNEL", Kernel)
        kernel = replace(kernel, name=folder.name, folder=folder, address=None)
        validate_kernel(kernel)
        return replace(kernel, address=self._address(kernel))

    def _address(self, kernel: Kernel) -> Address:
        if kernel.folder.parent in _shipped_roots():
            return Address(kernel.qualified_name)
        has_op = (kernel.folder / "op.py").is_file() or kernel.op in self._shipped_ops
        return Address(str(kernel.folder), () if has_op else self._extra)

    def op_of(self, kernel: Kernel) -> Op:
        """The op that the kernel computes: from its own folder, else by name.

        Raises SpecError when there is none, or when the kernel does not fit it.
        """
        op = self._op_by_name(kernel)
        validate_against_op(kernel, op)
        check_argument_sources(kernel, op)
        return op

    def _op_by_name(self, kernel: Kernel) -> Op:
        own = kernel.folder / "op.py"
        if own.is_file():
            if kernel.op in self._shipped_ops:
                raise SpecError(
                    f"{own}: {kernel.op!r} is a shipped op; give yours another name, in spec.py too"
                )
            return _read_op(own, kernel.op)
        if kernel.op in self._shipped_ops:
            return self._shipped_ops[kernel.op]
        if kernel.op in self._brought_ops:
            return _read_op(self._brought_ops[kernel.op], kernel.op)
        known = ", ".join([*self._shipped_ops, *self._brought_ops])
        raise SpecError(
            f"{kernel.spec_file}: unknown op {kernel.op!r}; known are {known}, "
            "or put op.py and reference.py beside spec.py"
        )

    def resolve(
        self, references: Iterable[str], toolchains: Sequence[str] = ()
    ) -> tuple[Choice, ...]:
        """What the references mean, each kernel's variants in the order of its spec.

        No reference means every kernel. toolchains: ids for the references that name none; each
        kernel comes once with every one that compiles its language. Raises UsageError for a name
        that nothing bears, or that more than one kernel bears, SpecError when the one that is named
        is broken, and ToolchainError for an id that compiles none of the kernels.
        """
        parsed = [parse_reference(text, is_folder) for text in references]
        if not parsed:
            found = [self._choice(kernel, Reference(kernel.name)) for kernel in self.kernels]
        else:
            found = [choice for reference in parsed for choice in self._compiled(reference)]
        return _with_toolchains(found, toolchains)

    def _compiled(self, reference: Reference) -> list[Choice]:
        """What the reference means, less the kernels of a language that its toolchain is not of."""
        choices, toolchain = self._meaning(reference), reference.toolchain
        if toolchain is None:
            return choices
        kept = [c for c in choices if _compiles(toolchain, c.kernel)]
        if not kept:
            raise ToolchainError(f"{reference}: {_compiles_none(toolchain, choices)}")
        return kept

    def _meaning(self, reference: Reference) -> list[Choice]:
        if reference.is_path:
            folder = expanded(reference.name, "the folder").resolve()
            if not (folder / "spec.py").is_file():
                raise UsageError(f"{reference.name}: expected a kernel folder with a spec.py in it")
            return [self._choice(self.kernel_in(folder), reference)]
        kernels, by_op = self._named(reference)
        if by_op and not kernels:
            raise UsageError(f"no kernel computes the op {reference.name}")
        if not kernels:
            self._raise_unknown(reference)
        return [self._choice(k, reference, by_op) for k in kernels if self._bears(k, reference)]

    def _named(self, reference: Reference) -> tuple[list[Kernel], bool]:
        lang, slash, name = reference.name.rpartition("/")
        if any(c in name for c in "*?["):
            pool = [k for k in self.kernels if not slash or k.lang == _LANGS[lang]]
            return [k for k in pool if fnmatchcase(k.name, name)], False
        bearing = [k for k in self.kernels if k.name == name]
        if slash:
            bearing = [k for k in bearing if k.lang == _LANGS[lang]]
        elif name in self.ops and not reference.variant:
            return [k for k in self.kernels if k.op == name], True
        elif reference.variant and name in self.ops:
            of_op = [k for k in self.kernels if k.op == name and k.variant(reference.variant)]
            bearing = bearing or of_op
        if len(bearing) > 1:
            candidates = ", ".join(f"{k.qualified_name} ({k.folder})" for k in bearing)
            raise UsageError(f"{reference} is ambiguous: {candidates}")
        return bearing, False

    def _bears(self, kernel: Kernel, reference: Reference) -> bool:
        """Whether the kernel has the variant; behind a wildcard name it may lack it."""
        wild = any(c in reference.name for c in "*?[")
        return not wild or bool(_variants(kernel, reference.variant))

    def _choice(self, kernel: Kernel, reference: Reference, by_op: bool = False) -> Choice:
        commit: str | None = None
        if reference.revision:
            kernel, commit = self._at_revision(kernel, reference.revision)
        names = _variants(kernel, reference.variant)
        if not names:
            known = ", ".join(v.name for v in kernel.variants)
            raise UsageError(f"{reference}: {kernel.name} has the variants {known}")
        return Choice(kernel, self.op_of(kernel), names, reference.toolchain, by_op, commit)

    def _at_revision(self, kernel: Kernel, revision: str) -> tuple[Kernel, str]:
        if self._revisions is None:
            raise UsageError(f"@git:{revision}: no folder to lay out another revision's sources in")
        folder, commit = folder_at(kernel.folder, revision, self._revisions)
        return self.kernel_in(folder), commit

    def _raise_unknown(self, reference: Reference) -> None:
        for broken in self.broken:
            if broken.folder.name == reference.name.rpartition("/")[2]:
                raise SpecError(broken.reason)
        names = sorted({k.name for k in self.kernels} | set(self.ops))
        path = f"; for the folder write ./{reference}" if is_folder(reference.name) else ""
        raise UsageError(
            f"nothing is called {str(reference)!r}; known are {', '.join(names)}{path}"
        )


def _with_toolchains(choices: Sequence[Choice], toolchains: Sequence[str]) -> tuple[Choice, ...]:
    """The choices that name no toolchain, with every one of these that compiles them."""
    if not toolchains:
        return tuple(choices)
    open_choices = [c for c in choices if c.toolchain is None]
    for identifier in toolchains:
        if open_choices and not any(_compiles(identifier, c.kernel) for c in open_choices):
            raise ToolchainError(_compiles_none(identifier, open_choices))
    found: list[Choice] = []
    for choice in choices:
        if choice.toolchain is not None:
            found.append(choice)
        else:
            fitting = [i for i in toolchains if _compiles(i, choice.kernel)]
            found += [replace(choice, toolchain=identifier) for identifier in fitting]
    return tuple(found)


def _compiles(toolchain_id: str, kernel: Kernel) -> bool:
    """Whether a toolchain of that id is for the kernel's language."""
    return toolchain_id.startswith(f"{COMPILER_NAMES[kernel.lang]}-")


def _compiles_none(toolchain_id: str, choices: Iterable[Choice]) -> str:
    langs = " or ".join(sorted({c.kernel.lang for c in choices}))
    return f"toolchain {toolchain_id!r} compiles no {langs} kernels"


def _variants(kernel: Kernel, pattern: str | None) -> tuple[str, ...]:
    return tuple(v.name for v in kernel.variants if fnmatchcase(v.name, pattern or "*"))


def _kernel_folders(root: Path) -> list[Path]:
    return sorted(p.parent for p in root.glob("*/spec.py"))


def _read_op(file: Path, name: str) -> Op:
    op = replace(read_object(file, "OP", Op), name=name, folder=file.parent)
    validate_op(op, file)
    for case in (*op.cases, *(c.for_emulator() for c in op.cases)):
        if problem := check_case(op, case):
            raise SpecError(f"{file}: case {case.name!r}: {problem}")
    return op


def check_case(op: Op, case: Case) -> str | None:
    """What the op says is wrong with the case, before its data is made."""
    asked = f"check_case() of {case.name!r}"
    problem: str | None = ask(op.folder / "op.py", asked, op.check_case, case, kind=str | None)
    return problem
