"""The command `sparsekit`: errors become one message and their exit code here, and nowhere else."""

from __future__ import annotations

import os
import sys

import click

from sparsekit.cli import cli
from sparsekit.errors import EXIT_INTERRUPTED, EXIT_OK, SparsekitError


def main() -> None:
    sys.exit(run())


def run() -> int:
    """Run the command line and return its exit code."""
    try:
        code = cli.main(prog_name="sparsekit", standalone_mode=False)
        sys.stdout.flush()
    except SparsekitError as error:
        click.echo(f"sparsekit: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("sparsekit: interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    return code if isinstance(code, int) else EXIT_OK


if __name__ == "__main__":
    main()
