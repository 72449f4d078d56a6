"""Running the Python files of kernels, ops and users, and calling what they define.

`spec.py` and `op.py` are data. Their syntax tree is checked before they run: they import
`sparsekit.model` and a few pure modules of the standard library, and name no builtin that reaches
outside. That keeps mistakes out, not malice: a kernel folder is code that you run, like any source
that you compile.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from sparsekit.errors import SparsekitError, SpecError
from sparsekit.model.fields import type_problems

_MODULES = frozenset({
    "__future__", "collections", "collections.abc", "dataclasses", "enum", "fractions", "functools",
    "itertools", "math", "operator", "sparsekit.model", "string", "typing",
})  # fmt: skip
_FORBIDDEN = frozenset({
    "__builtins__", "__import__", "breakpoint", "compile", "delattr", "eval", "exec", "exit",
    "globals", "input", "locals", "open", "print", "quit", "setattr", "vars",
})  # fmt: skip

T = TypeVar("T")


def read_object(file: Path, name: str, kind: type[T]) -> T:
    """The object that the file binds to `name`. Raises SpecError with file, line and reason."""
    try:
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source, filename=str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file} cannot be read: {error}") from error
    except SyntaxError as error:
        raise SpecError(f"{file}:{error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise SpecError(f"{file} cannot be parsed: {error}") from error
    _check(tree, file)
    namespace: dict[str, object] = {"__name__": f"sparsekit_{file.stem}", "__file__": str(file)}
    try:
        exec(compile(tree, str(file), "exec"), namespace)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a spec must not end the command
        raise SpecError(f"{file}:{_line(error, file)}: {_told(error)}") from error
    found = namespace.get(name)
    if not isinstance(found, kind):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise SpecError(f"{file} must bind {name} to a {kind.__name__}, found {what}")
    return found


def load_module(file: Path, name: str) -> ModuleType:
    """A Python file that is code, such as reference.py, run as a module of that name.

    Raises SpecError with file and line when it does not load.
    """
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SpecError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too, as above
        raise SpecError(f"{_at(file, error)} does not load: {_told(error)}") from error
    return module


def ask(file: Path, what: str, function: Callable[..., Any], *args: Any, kind: Any) -> Any:
    """What a function of spec.py or op.py says of a call, of the annotated kind.

    Raises SpecError naming the file and what was asked when it raises, or answers something else.
    """
    try:
        answer = function(*args)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SpecError(f"{_at(file, error)}: {what} raised {_told(error)}") from error
    for problem in type_problems(answer, kind, what):
        raise SpecError(f"{file}: {problem}")
    return answer


def _told(error: BaseException) -> str:
    """The error in a line; one of ours speaks for itself."""
    if isinstance(error, SparsekitError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _check(tree: ast.Module, file: Path) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        elif isinstance(node, ast.Name) and node.id in _FORBIDDEN:
            raise SpecError(f"{file}:{node.lineno}: {node.id} is not allowed; {file.name} is data")
        elif isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            raise SpecError(
                f"{file}:{node.lineno}: .{node.attr} is not allowed; {file.name} is data"
            )
        else:
            continue
        for module in names:
            if module not in _MODULES:
                raise SpecError(
                    f"{file}:{node.lineno}: imports {module}; {file.name} is data and may import "
                    f"sparsekit.model and pure standard modules ({', '.join(sorted(_MODULES)[1:])})"
                )


def _at(file: Path, error: BaseException) -> str:
    """The file, with the line where the error arose if it arose there."""
    line = _line(error, file)
    return f"{file}:{line}" if line else str(file)


def _line(error: BaseException, file: Path) -> int:
    """The line of the file where the error arose; 0 when it arose elsewhere."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
