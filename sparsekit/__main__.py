"""The command `sparsekit`: errors become one message and their exit code here, and nowhere else."""

from __future__ import annotations

import os
import sys

from sparsekit.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    SparsekitError,
    ToolchainError,
    UsageError,
)

# All else is imported in `run`, so that Ctrl-C and a package that is missing are answered whenever
# they come. By module, what to install:
_DISTRIBUTIONS = {
    "click": "click", "cuda": "cuda-python", "numpy": "numpy", "platformdirs": "platformdirs",
    "rich": "rich", "safetensors": "safetensors", "torch": "torch", "triton": "triton",
}  # fmt: skip


def main() -> None:
    sys.exit(run())


def run() -> int:
    """Run the command line and return its exit code."""
    try:
        _open_standard_streams()
        code = _run_commands()
        sys.stdout.flush()
    except KeyboardInterrupt:
        _tell("interrupted")
        return EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _DISTRIBUTIONS:
            raise
        name = _DISTRIBUTIONS[package]
        _tell(
            f"package {name} is not installed for {sys.executable}; pip install {name}, or install "
            "sparsekit again with what it depends on; see sparsekit doctor"
        )
        return ToolchainError.exit_code
    except BrokenPipeError:  # the reader of our output left, as `head` does
        _drop_output()
        return EXIT_OK
    except OSError as error:
        _drop_output()
        what = error.filename or "cannot write to standard output"
        _tell(f"{what}: {error.strerror or error}")
        return UsageError.exit_code
    return code


def _run_commands() -> int:
    import click

    from sparsekit.cli import cli

    try:
        code = cli.main(prog_name="sparsekit", standalone_mode=False)
    except SparsekitError as error:
        _tell(str(error))
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else EXIT_OK


def _open_standard_streams() -> None:
    """Put something into the place of streams that the caller closed.

    No file that is opened later may become descriptor 0, 1 or 2. Writing to the stand-in of
    standard output fails, as it should: nobody gets the result.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if descriptor == 2 else os.O_RDONLY)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _drop_output() -> None:
    """Let what is still to be written to standard output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _tell(text: str) -> None:
    sys.stderr.write(f"sparsekit: {text}\n")


if __name__ == "__main__":
    main()
