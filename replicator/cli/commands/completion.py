"""`replicator completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which a shell completes commands and options.

    For the present shell: eval "$(replicator completion bash)". For all: write the script to where the shell looks for
    it, in bash /usr/share/bash-completion/completions/replicator.
    """
    root = context.find_root()
    made = get_completion_class(shell)
    assert made is not None, "click knows all of SHELLS"
    assert root.info_name is not None
    name = root.info_name
    click.echo(made(root.command, {}, name, f"_{name.upper()}_COMPLETE").source())
