"""`replicator fetch`: prints one mail as it was stored."""

from __future__ import annotations

import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import click

from protocol.values import UID_MAX
from replicator.cli.api.client import NodeClient
from replicator.cli.api.mail_stream import MailUnreadableError
from replicator.cli.output import printable
from replicator.cli.target import CommandError, node_options, one_node


@click.command()
@click.argument("user")
@click.argument("mailbox")
@click.argument("uid", type=click.IntRange(1, UID_MAX))
@node_options
def fetch(user: str, mailbox: str, uid: int, config_file: Path | None, url: str | None) -> None:
    """Print the mail with this UID in USER's MAILBOX, byte for byte, on standard output.

    A terminal is shown ? for what it would obey.
    """
    if "" in {user, mailbox}:
        raise click.UsageError("USER and MAILBOX must not be empty")
    out = sys.stdout.buffer
    with NodeClient(one_node(config_file, url)) as client, closing(client.mails(user, mailbox, uid)) as mails:
        mail = next(mails, None)
        if mail is None:
            raise CommandError(f"{user}'s {mailbox} has no mail with the UID {uid} any more")
        try:
            for piece in _harmless(mail.pieces) if sys.stdout.isatty() else mail.pieces:
                out.write(piece)
        except MailUnreadableError as error:
            raise CommandError(f"the mail cannot be read to its end: {error}") from error
    out.flush()


def _harmless(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a mail in UTF-8 without characters that a terminal would obey. Line ends become LF."""
    decoder = getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        lines = decoder.decode(piece).replace("\r", "").split("\n")
        yield "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines).encode()
    yield decoder.decode(b"", final=True).encode()
