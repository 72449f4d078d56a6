"""`sparsekit completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from sparsekit.errors import UsageError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the shell's completion script.

    \b
    sparsekit completion bash > ~/.local/share/bash-completion/completions/sparsekit
    sparsekit completion zsh > "${fpath[1]}/_sparsekit"
    sparsekit completion fish > ~/.config/fish/completions/sparsekit.fish
    """
    from sparsekit.cli import cli

    found = get_completion_class(shell)
    if found is None:
        raise UsageError(f"click knows no completion for {shell}")
    click.echo(found(cli, {}, "sparsekit", "_SPARSEKIT_COMPLETE").source())
