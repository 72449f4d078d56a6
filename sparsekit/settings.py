"""Settings: flag, then `SPARSEKIT_*`, then `[tool.sparsekit]`, then the default.

This is the only module that reads the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparsekit.errors import UsageError

_KEYS = ("cache-dir", "data-dir", "kernels", "jobs")
# Variables of other tools that are honoured, because they choose the compiler that is run.
_PTXAS_VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


@dataclass(frozen=True)
class Settings:
    """What one command runs with.

    cache_dir: the artifact store. data_dir: where toolchains beside the installed ones lie.
    kernel_dirs: folders of kernel folders that the user named. jobs: worker processes.
    ptxas: assemblers that the user chose for Triton, by variable. interpret: TRITON_INTERPRET is
    set, which would make Triton compile nothing. path, cuda_home: where tools are looked for.
    """

    cache_dir: Path
    data_dir: Path
    kernel_dirs: tuple[Path, ...]
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
    dirs = kernel_dirs or _paths(env.get("SPARSEKIT_KERNELS")) or _listed(table.get("kernels"))
    return Settings(
        cache_dir=cache_dir
        or _folder(env.get("SPARSEKIT_CACHE_DIR") or table.get("cache-dir"), "cache"),
        data_dir=_folder(env.get("SPARSEKIT_DATA_DIR") or table.get("data-dir"), "data"),
        kernel_dirs=tuple(d.expanduser().resolve() for d in dirs),
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


def _project_table(folder: Path) -> dict[str, object]:
    """`[tool.sparsekit]` of the pyproject.toml in the folder, checked for unknown keys."""
    file = folder / "pyproject.toml"
    try:
        table = tomllib.loads(file.read_text()).get("tool", {}).get("sparsekit", {})
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    unknown = [k for k in table if k not in _KEYS]
    if unknown:
        known = ", ".join(_KEYS)
        raise UsageError(
            f"[tool.sparsekit] in {file} has unknown key {unknown[0]!r}; it takes {known}"
        )
    return dict(table)


def _folder(value: object, kind: str) -> Path:
    if value:
        return Path(str(value)).expanduser().absolute()
    import platformdirs  # costs 10 ms, and only a command that needs a path gets here

    find = platformdirs.user_cache_path if kind == "cache" else platformdirs.user_data_path
    return find("sparsekit")


def _paths(value: str | None) -> tuple[Path, ...]:
    return tuple(Path(p) for p in (value or "").split(os.pathsep) if p)


def _listed(value: object) -> tuple[Path, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise UsageError(f"[tool.sparsekit] kernels must be a list of folders, found {value!r}")
    return tuple(Path(v) for v in value)


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
