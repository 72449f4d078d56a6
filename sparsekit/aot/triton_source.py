"""A Triton source, and the files beside it, as modules made of the very bytes that the key names.

Python's own import would take a `.pyc` that only looks as new as its source, and write one beside
it; and Triton reads a function's text from the file, which may have changed meanwhile.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from sparsekit.errors import CompileError

_MAIN = "sparsekit_triton_source"


def load_source(files: Sequence[tuple[Path, str, bytes]]) -> ModuleType:
    """The module of the first file. files: path, name under the kernel's folder, content.

    Raises CompileError when it does not load.
    """
    path, name, content = files[0]
    modules = {_module_name(n): (p, c) for p, n, c in files[1:]} | {_MAIN: (path, content)}
    finder = _Verified(modules)
    spec = finder.find_spec(_MAIN)
    assert spec is not None
    module = module_from_spec(spec)
    known = set(sys.modules)
    sys.modules[_MAIN] = module  # inspect.getsource looks here
    sys.meta_path.insert(0, finder)
    try:
        finder.exec_module(module)
    except Exception as error:
        raise CompileError(f"{name} does not load: {type(error).__name__}: {error}") from error
    finally:
        sys.meta_path.remove(finder)
        for loaded in (set(sys.modules) - known) & finder.names:
            del sys.modules[loaded]
    return module


def _module_name(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".")


class _Verified(MetaPathFinder, Loader):
    """Finds and runs the modules of the closure, and no other file beside them."""

    def __init__(self, modules: Mapping[str, tuple[Path, bytes]]) -> None:
        self._modules = modules
        parts = [name.split(".") for name in modules]
        self._folders = {".".join(p[:i]) for p in parts for i in range(1, len(p))} - set(modules)

    @property
    def names(self) -> set[str]:
        return {*self._modules, *self._folders} - {_MAIN}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name in self._folders:
            return ModuleSpec(name, None, is_package=True)
        if name not in self._modules:
            return None
        origin = str(self._modules[name][0])
        return spec_from_loader(name, self, origin=origin, is_package=False)

    def exec_module(self, module: ModuleType) -> None:
        path, content = self._modules[module.__name__]
        file = module.__file__ = str(path)
        text = content.decode("utf-8")
        # Without a time, the cache never looks at the file again.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(content, file, "exec"), module.__dict__)
