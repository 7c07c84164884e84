"""A click group that imports a command's module when it is needed: `status` need not load a mail store."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click


class LazyGroup(click.Group):
    """`commands_at` gives for each command's name its place, `module:attribute`."""

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
        """The names, for `--help`."""
        return sorted(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  as above
        """The command, or None if there is none of that name."""
        place = self._commands_at.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command
