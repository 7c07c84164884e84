"""Click groups: one helps with wrong names and explains its commands, one also imports a command when it is needed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module

import click

SENTENCE_MAX = 200
"""Characters that help shows of a command."""


class HelpfulGroup(click.Group):
    """A group that answers an unknown command with the known one most like it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names. Raises click.UsageError."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            names = self.list_commands(ctx)
            near = difflib.get_close_matches(name, names, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"the commands are: {', '.join(names)}"
            raise click.UsageError(f"there is no command {name!r}; {advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, each with the whole first sentence of its help."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, each.get_short_help_str(SENTENCE_MAX))
                    for name, each in commands.items()
                    if each and not each.hidden
                ]
            )


class LazyGroup(HelpfulGroup):
    """A group whose commands are imported on use, so that `status` need not load the mail store.

    `commands_at` maps each command's name to its location, `module:attribute`.
    """

    def __init__(
        self,
        *,
        name: str,
        commands_at: Mapping[str, str],
        about: str,
        context_settings: dict[str, object],
    ) -> None:
        super().__init__(name=name, help=about, context_settings=context_settings)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  the base class's signature
        """Return the names, for `--help`."""
        return sorted(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  as above
        """Return the command, or None if there is none of that name."""
        place = self._commands_at.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command
