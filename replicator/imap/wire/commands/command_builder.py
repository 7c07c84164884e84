"""The builders of all groups as the one transformer that the parser needs."""

from __future__ import annotations

from lark import Token, v_args

from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.builders.append import AppendBuilder
from replicator.imap.wire.commands.builders.folders import FolderBuilder
from replicator.imap.wire.commands.builders.messages import MessageBuilder
from replicator.imap.wire.commands.builders.metadata import MetadataBuilder
from replicator.imap.wire.commands.builders.notify import NotifyBuilder
from replicator.imap.wire.commands.builders.searches import SearchBuilder
from replicator.imap.wire.commands.builders.session import SessionBuilder


@v_args(inline=True)
class CommandBuilder(
    SessionBuilder, FolderBuilder, MetadataBuilder, NotifyBuilder, AppendBuilder, MessageBuilder, SearchBuilder
):
    """Builds the command of one text at a time in each thread. Call `begin` before each."""

    def __reduce__(self) -> tuple[type[CommandBuilder], tuple[()]]:
        """Pickle as a new one: nothing lasts from one text to the next."""
        return CommandBuilder, ()

    def tagged(self, tag: Token, command: c.Command) -> c.Tagged:
        """Add the tag, and what is wrong with a mailbox name."""
        return c.Tagged(str(tag), command, self.bad_name)
