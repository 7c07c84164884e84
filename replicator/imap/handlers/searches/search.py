"""SEARCH (RFC 3501 section 6.4.4, RFC 9051 section 6.4.4)."""

from __future__ import annotations

from dataclasses import replace

from replicator.imap.handlers.searches.results import check_readable, find, limited_work, save, take_saved, tell
from replicator.imap.handlers.searches.updates import keep_updated, watch
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.search_keys import ReturnOption, Returns


async def search(session: Session, command: c.Search) -> Completion:
    """Run SEARCH and UID SEARCH. Raises BadCharsetError and, beyond a limit, CommandFailedError.

    Messages whose body no reachable node has match nothing; the answer is NO then, after the results.
    """
    if session.aware.rev2 and command.returns is None:  # RFC 9051 section 6.4.4
        command = replace(command, returns=Returns(frozenset({ReturnOption.ALL})))
    watch(session, command)
    with limited_work(session, "SEARCH") as work:
        found = await find(session, command.program, take_saved(session, command.returns), work)
    await tell(session, "SEARCH", found.uids, command)
    await keep_updated(session, command, len(found.uids), lambda: [(uid,) for uid in found.uids])
    check_readable(found)
    await save(session, found, found.uids, command.returns)
    return Completion("Searched")
