"""Kernel folders and the ops that their kernels compute, as they are read and checked.

A kernel folder holds `spec.py` and one source; it may bring `op.py` and `reference.py`. Shipped
folders, and folders that the user names, are scanned; the working directory never is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from sparsekit.argument_sources import check_argument_sources
from sparsekit.errors import SpecError, UsageError
from sparsekit.model.kernel import Address, Kernel
from sparsekit.model.op import Case, Op
from sparsekit.model.validate import validate_against_op, validate_kernel, validate_op
from sparsekit.spec_file import ask, read_object

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Broken:
    """A kernel folder that cannot be used, and why."""

    folder: Path
    reason: str
    exit_code: int = SpecError.exit_code


def shipped_folder(name: str) -> Path:
    """`kernels_cu` or `kernels_triton`: inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def _shipped_roots() -> tuple[Path, ...]:
    return shipped_folder("kernels_cu"), shipped_folder("kernels_triton")


class KernelFolders:
    """The kernels and ops at hand, read on first use."""

    def __init__(self, extra: Sequence[Path] = (), origin: str = "--kernels") -> None:
        """extra: folders beside the shipped ones. origin: where the user named them."""
        self._extra, self._origin = tuple(extra), origin

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
