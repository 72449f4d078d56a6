"""Settings: flag, then `SPARSEKIT_*`, then `[tool.sparsekit]`, then the default.

This is the only module that reads the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparsekit.errors import UsageError
from sparsekit.files import expanded

_TABLE = "[tool.sparsekit]"
_KEYS = ("cache-dir", "data-dir", "kernels", "jobs")
# Variables of other tools that are honoured, because they choose the compiler that is run.
_PTXAS_VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
# Where folders lie for a user without a home: nothing is there, and nobody, root neither, can make
# a folder there, so that the store becomes a temporary one, with the warning.
NOWHERE = Path("/proc/no-home")
_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Settings:
    """What one command runs with.

    cache_dir: the artifact store. data_dir: where toolchains beside the installed ones lie.
    kernel_dirs: folders of kernel folders that the user named; kernels_origin: where. jobs: worker
    processes.
    ptxas: assemblers that the user chose for Triton, by variable. interpret: TRITON_INTERPRET is
    set, which would make Triton compile nothing. path, cuda_home: where tools are looked for.
    """

    cache_dir: Path
    data_dir: Path
    kernel_dirs: tuple[Path, ...]
    kernels_origin: str
    jobs: int
    ptxas: Mapping[str, str]
    interpret: bool
    path: str
    cuda_home: str | None


def load(
    *, cache_dir: Path | None = None, kernel_dirs: tuple[Path, ...] = (), jobs: int | None = None
) -> Settings:
    """Settings of this process; arguments are the flags. Raises UsageError on a bad value."""
    env = os.environ
    table = _project_table(Path.cwd())
    dirs, origin = _kernel_dirs(kernel_dirs, env.get("SPARSEKIT_KERNELS"), table)
    return Settings(
        cache_dir=_first_folder(
            ("--cache-dir", cache_dir),
            ("SPARSEKIT_CACHE_DIR", env.get("SPARSEKIT_CACHE_DIR")),
            (f"{_TABLE} cache-dir", table.get("cache-dir")),
        )
        or _default_folder("cache"),
        data_dir=_first_folder(
            ("SPARSEKIT_DATA_DIR", env.get("SPARSEKIT_DATA_DIR")),
            (f"{_TABLE} data-dir", table.get("data-dir")),
        )
        or _default_folder("data"),
        kernel_dirs=tuple(expanded(d, origin).resolve() for d in dirs),
        kernels_origin=origin,
        jobs=_jobs(jobs or env.get("SPARSEKIT_JOBS") or table.get("jobs")),
        ptxas={v: env[v] for v in _PTXAS_VARIABLES if env.get(v)},
        interpret=env.get("TRITON_INTERPRET", "0") not in ("", "0"),
        path=env.get("PATH", os.defpath),
        cuda_home=env.get("CUDA_HOME") or env.get("CUDA_PATH"),
    )


def child_environment(keep: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child that compiles: a few neutral variables, and what is given.

    Nothing that a compiler reads comes through, so that it cannot change the code unseen.
    """
    neutral = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT")
    return {**{k: os.environ[k] for k in neutral if k in os.environ}, **keep}


def own_environment(keep: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child that is this program again: ours, and what is given."""
    return {**os.environ, **keep}


@contextmanager
def children_of_one_thread() -> Iterator[None]:
    """Processes that start in this context have a core each, unless the user says otherwise.

    numpy's library reads how many threads it is to have when it is loaded, and nothing can tell it
    later; more than there are cores wait for each other, spinning.
    """
    unset = [name for name in _THREAD_COUNTS if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, "1"))
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]


def _project_table(folder: Path) -> dict[str, object]:
    """`[tool.sparsekit]` of the pyproject.toml in the folder, checked for unknown keys."""
    file = folder / "pyproject.toml"
    try:
        table: object = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    for name in ("tool", "sparsekit"):
        table = table.get(name, {}) if isinstance(table, dict) else table
        if not isinstance(table, dict):
            raise UsageError(f"{_TABLE} in {file}: {name} must be a table, found {table!r}")
    assert isinstance(table, dict)
    unknown = [k for k in table if k not in _KEYS]
    if unknown:
        known = ", ".join(_KEYS)
        raise UsageError(f"{_TABLE} in {file} has unknown key {unknown[0]!r}; it takes {known}")
    return dict(table)


def _first_folder(*given: tuple[str, object]) -> Path | None:
    """The first folder that is given, each under the name that the user knows it by."""
    for origin, value in given:
        if value is not None and value != "":
            if not isinstance(value, str | Path):
                raise UsageError(f"{origin} must be a folder, found {value!r}")
            return expanded(value, origin)
    return None


def _default_folder(kind: Literal["cache", "data"]) -> Path:
    import platformdirs  # costs 10 ms, and only a command that needs a path gets here

    find = platformdirs.user_cache_path if kind == "cache" else platformdirs.user_data_path
    try:
        found = find("sparsekit")
    except RuntimeError:  # neither HOME nor an entry in the password file
        return NOWHERE
    return found if found.is_absolute() else NOWHERE


def _kernel_dirs(
    flags: tuple[Path, ...], variable: str | None, table: Mapping[str, object]
) -> tuple[Sequence[str | Path], str]:
    """The folders, and where they were named."""
    if flags:
        return flags, "--kernels"
    if listed := [p for p in (variable or "").split(os.pathsep) if p]:
        return listed, "SPARSEKIT_KERNELS"
    origin, value = f"{_TABLE} kernels", table.get("kernels", [])
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise UsageError(f"{origin} must be a list of folders, found {value!r}")
    return value, origin


def _jobs(value: object) -> int:
    if value is None:
        return max(1, len(os.sched_getaffinity(0)))
    try:
        jobs = int(str(value))
    except ValueError:
        jobs = 0
    if jobs < 1:
        raise UsageError(f"the number of jobs must be a positive integer, found {value!r}")
    return jobs
