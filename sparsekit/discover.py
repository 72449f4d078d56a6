"""From names, wildcards and paths to kernels and ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from sparsekit.errors import SpecError, ToolchainError, UsageError
from sparsekit.files import expanded, is_folder
from sparsekit.kernel_folders import KernelFolders
from sparsekit.model.kernel import LANG_PREFIXES, Kernel
from sparsekit.model.op import Op
from sparsekit.model.reference import Reference, parse_reference
from sparsekit.model.toolchain import COMPILER_NAMES
from sparsekit.revisions import folder_at

_LANGS = {prefix: lang for lang, prefix in LANG_PREFIXES.items()}


@dataclass(frozen=True)
class Choice:
    """What a reference means: a kernel, those of its variants that were named, a toolchain id.

    by_op: the op was named, or everything was meant: a command may choose among the kernels that
    compute it, and what one of them lacks another may have.
    revision: the commit that the kernel's sources are from; None for those that lie here.
    """

    kernel: Kernel
    op: Op
    variants: tuple[str, ...]
    toolchain: str | None = None
    by_op: bool = False
    revision: str | None = None


def only_op(choices: Sequence[Choice], reference: str) -> Op:
    """The op of all choices. Raises UsageError where they are of several."""
    ops = {choice.op.name: choice.op for choice in choices}
    if len(ops) != 1:
        raise UsageError(f"{reference!r} means several ops, {', '.join(ops)}; name one")
    return choices[0].op


class Catalog(KernelFolders):
    """The kernels and ops at hand, and what references to them mean."""

    def __init__(
        self, extra: Sequence[Path] = (), origin: str = "--kernels", revisions: Path | None = None
    ) -> None:
        """revisions: where sources of other git revisions are laid out; without it no reference may
        name one."""
        super().__init__(extra, origin)
        self._revisions = revisions

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
            found = [self._choice(k, Reference(k.name), by_op=True) for k in self.kernels]
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
                found = "" if folder.exists() else "; there is no such folder"
                raise UsageError(
                    f"{reference.name}: expected a kernel folder with a spec.py in it{found}"
                )
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
            # What was made for some calls is preferred, and then what was made for fewer targets.
            of_op = [k for k in self.kernels if k.op == name]
            return sorted(of_op, key=lambda k: (not k.made_for, len(k.targets))), True
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
