"""`sparklog completion`: the script by which a shell completes commands and options (click's)."""

from __future__ import annotations

import sys

import click
from click.shell_completion import get_completion_class

from sparklog.cli.framework import Command

VARIABLE = "_SPARKLOG_COMPLETE"


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which a shell completes commands and options.

    \b
    eval "$(sparklog completion bash)"          in ~/.bashrc
    eval "$(sparklog completion zsh)"           in ~/.zshrc
    sparklog completion fish | source           in ~/.config/fish/config.fish
    """  # noqa: D301 - click looks for the character, not for a backslash and a b
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root()
    sys.stdout.write(f"{found(root.command, {}, 'sparklog', VARIABLE).source()}\n")
