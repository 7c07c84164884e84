"""The servers of rounds, and how a round has ended."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import trio

from replicator.config import Address
from tests.dsync.dovecot import IMAP, MAILDIR, SDBOX
from tests.dsync.pushed import listening_dovecot
from tests.end_to_end.helpers.in_process import free_ports
from tests.fuzz.syncs.round import Round, Server

ROUND_S = 300.0
"""Seconds for one round, which takes some: only one that hangs takes as long."""


@contextmanager
def servers() -> Iterator[Mapping[str, Server]]:
    """Run a Dovecot for each kind of mailboxes."""
    with ExitStack() as stack:
        found = dict[str, Server]()
        for location in (SDBOX, MAILDIR):
            imap = Address("127.0.0.1", free_ports(1)[0])
            running = listening_dovecot(location, IMAP.format(address=imap))
            dovecot, doveadm = stack.enter_context(running)
            found[location] = Server(dovecot, imap, doveadm)
        yield found


async def played(one: Round) -> str | None:
    """Play a round. Return None, or its story and what was wrong."""
    try:
        with trio.fail_after(ROUND_S):
            await one.play()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a find
        wrong = ("".join(traceback.format_exception(leaf)) for leaf in _leaves(error))
        return "\n".join([f"seed {one.seed}", *one.story, *wrong])
    return None


def _leaves(error: Exception) -> Iterator[Exception]:
    """Yield the errors that nurseries have wrapped."""
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
