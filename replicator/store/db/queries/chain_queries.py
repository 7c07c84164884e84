"""Queries on the heads of mailboxes and trees, and on whose they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from replicator.store.db import chain as chains
from replicator.store.db.chain import Chain
from replicator.store.db.queries.mailbox_key import MailboxKey

ASKED_AT_ONCE = 500  # ids or users in one query; SQLite takes 32,766 values


def empty_chain(key: MailboxKey) -> Chain:
    """Return the head of a mailbox or tree in which nothing has happened yet."""
    return Chain(key.mailbox_id, key.user, key.uidvalidity)


def chain_or_empty(connection: sqlite3.Connection, key: MailboxKey) -> Chain:
    """Return the head of a mailbox or tree as this node shows it."""
    return chains.load(connection, key.mailbox_id) or empty_chain(key)


def key_of(connection: sqlite3.Connection, mailbox_id: bytes) -> MailboxKey | None:
    """Return the key of a mailbox or tree, from its chain or, if that is missing, from the mailbox's folder."""
    chain = chains.load(connection, mailbox_id)
    if chain is not None:
        return MailboxKey(chain.user, mailbox_id, chain.uidvalidity)
    row = connection.execute("SELECT user, uidvalidity FROM folder WHERE mailbox_id = ?", (mailbox_id,)).fetchone()
    return MailboxKey(row[0], mailbox_id, row[1]) if row else None


def chains_of(connection: sqlite3.Connection, user: str | None) -> Iterator[Chain]:
    """Yield the chains by id: all, or one user's."""
    where, values = (" WHERE user = ?", (user,)) if user is not None else ("", ())
    yield from map(chains.from_row, connection.execute(f"{chains.SELECT}{where} ORDER BY id", values))


def mailbox_keys(
    connection: sqlite3.Connection, mailbox_ids: Iterable[bytes] = (), users: Iterable[str] = ()
) -> Iterator[MailboxKey]:
    """Yield the keys of these mailboxes, if they are here, and of those of these users."""
    select = "SELECT user, id, uidvalidity FROM chain WHERE uidvalidity > 0 AND"
    for column, values in (("id", mailbox_ids), ("user", users)):
        left: Iterator[bytes | str] = iter(values)
        while some := tuple(islice(left, ASKED_AT_ONCE)):
            marks = ",".join("?" * len(some))
            yield from map(MailboxKey._make, connection.execute(f"{select} {column} IN ({marks})", some))


def chain_keys(connection: sqlite3.Connection, chain_ids: Sequence[bytes]) -> list[MailboxKey]:
    """Return the keys of these mailboxes and trees, at most 32,766, if they are here."""
    marks = ",".join("?" * len(chain_ids))
    query = f"SELECT user, id, uidvalidity FROM chain WHERE id IN ({marks})"
    return [*map(MailboxKey._make, connection.execute(query, chain_ids))]


def all_mailbox_keys(connection: sqlite3.Connection) -> Iterator[MailboxKey]:
    """Yield the keys of all mailboxes."""
    query = "SELECT user, id, uidvalidity FROM chain WHERE uidvalidity > 0"
    yield from map(MailboxKey._make, connection.execute(query))


def users(connection: sqlite3.Connection) -> list[str]:
    """Return the users that have a mailbox or folder tree here."""
    return [user for (user,) in connection.execute("SELECT DISTINCT user FROM chain ORDER BY user")]


def users_after(connection: sqlite3.Connection, user: str, most: int) -> list[str]:
    """Return the next users that have a mailbox or folder tree here after this name, in their order."""
    query = "SELECT DISTINCT user FROM chain WHERE user > ? ORDER BY user LIMIT ?"
    return [found for (found,) in connection.execute(query, (user, most))]
