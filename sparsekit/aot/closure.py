"""The source closure: every file of ours that reaches the compiler, by content.

CUDA: the source and what it includes, from its folder and the shipped headers; toolkit headers are
part of the toolchain. Triton: the source and the files beside it that it imports.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sparsekit.digest import sha256_of
from sparsekit.errors import SpecError
from sparsekit.kernel_folders import shipped_folder
from sparsekit.model.artifact import SourceFile
from sparsekit.model.kernel import Kernel

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.MULTILINE)
_COMPUTED_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include[ \t]+[A-Za-z_]", re.MULTILINE)
_TRITON_IMPORTS = frozenset({"triton", "torch"})
_Needs = Callable[[bytes, Path, Sequence[Path]], Iterable[str]]


def source_closure(kernel: Kernel) -> tuple[SourceFile, ...]:
    """The kernel's source first, then the files it needs, each once. Raises SpecError."""
    folder = kernel.folder
    if kernel.lang == "cuda":
        found = _closure(
            kernel.source, folder / kernel.source, (folder, _headers(folder)), _included
        )
    else:
        found = _closure(kernel.source, folder / kernel.source, (folder,), _imported)
    return tuple(found)


def _headers(folder: Path) -> Path:
    """The headers beside the kernel folder, as in a checkout of another revision; else ours."""
    beside = folder.parent / "include" / "sparsekit"
    return beside.parent if beside.is_dir() else shipped_folder("kernels_cu") / "include"


def read_source(file: SourceFile) -> bytes:
    """The file's content; SpecError when it is no longer what was planned."""
    content = file.path.read_bytes()
    if sha256_of(content) != file.sha256:
        raise SpecError(f"{file.path} changed while it was being built; build again")
    return content


def _closure(name: str, path: Path, roots: tuple[Path, ...], needs: _Needs) -> list[SourceFile]:
    found: dict[str, SourceFile] = {}
    pending = [(name, path)]
    while pending:
        name, path = pending.pop()
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SpecError(f"{path} cannot be read: {error}") from error
        found[name] = SourceFile(name, path, sha256_of(content))
        for needed in sorted(needs(content, path, roots), reverse=True):
            place = _place(needed, roots)
            if place is not None and needed not in found:
                pending.append((needed, place))
    return list(found.values())


def _place(name: str, roots: Sequence[Path]) -> Path | None:
    return next((root / name for root in roots if (root / name).is_file()), None)


def _included(content: bytes, path: Path, roots: Sequence[Path]) -> Iterable[str]:
    if computed := _COMPUTED_INCLUDE.search(content):
        line = content.count(b"\n", 0, computed.start()) + 1
        raise SpecError(f"{path}:{line}: write the included file's name, not a macro")
    files: set[str] = set()
    for match in _INCLUDE.finditer(content):
        name = match[2].decode()
        if match[1] == b'"' and _place(name, roots) is None:
            line = content.count(b"\n", 0, match.start(1)) + 1
            raise SpecError(
                f'{path}:{line}: includes "{name}", which is neither in the kernel\'s folder nor '
                f"among the shipped headers; write <{name}> for a header of the CUDA toolkit"
            )
        files.add(name)
    return files


def _imported(content: bytes, path: Path, roots: Sequence[Path]) -> Iterable[str]:
    try:
        tree = ast.parse(content, filename=str(path))
    except SyntaxError as error:
        raise SpecError(f"{path}:{error.lineno}: {error.msg}") from error
    files: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            file = f"{module.replace('.', '/')}.py"
            if (path.parent / file).is_file():
                files.add(file)
            elif module.partition(".")[0] not in _TRITON_IMPORTS | sys.stdlib_module_names:
                raise SpecError(
                    f"{path}:{node.lineno}: imports {module}; a Triton source may import triton, "
                    "torch, the standard library and files beside it, so that its key is complete"
                )
    return files
