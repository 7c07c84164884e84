"""Helpers for tests of the store: opening one, short forms of the sequencer's requests, and looking at views."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

import pytest

from protocol.values import Dot, UidSet
from replicator.mail.view import MailboxView, Message
from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import queries
from replicator.store.db import tally as tallies
from replicator.store.db.queries import MailboxKey
from replicator.store.db.tally import NOTHING, Tally, shown
from replicator.store.db.transaction import Transaction
from replicator.store.log.sequencing import folder_sequencer, sequencer
from replicator.store.log.sequencing.sequencer import CopySource, Flagged, Placed
from replicator.store.store import Store
from resync.entry import NOWHERE, Change, Entry
from resync.node_annotations import KEPT_UIDVALIDITY
from tests.store.consistency import check_file

ALICE = "alice"
INBOX = MailboxKey(ALICE, b"inbox---" * 2, 7)
WORK = MailboxKey(ALICE, b"work----" * 2, 8)


@asynccontextmanager
async def open_store(path: Path, origin: str = "dc1.a", environment: Environment | None = None) -> AsyncIterator[Store]:
    """Open the store of `path / "node.db"`, and check its invariants when it is closed."""
    async with Store.open(path / "node.db", origin, environment or Environment()) as store:
        yield store
    check_file(path / "node.db")


def connection_of(store: Store) -> Connection:
    """Return the writer's own connection, to look at its data without another thread."""
    return store._connection


def check_usages(store: Store) -> int:
    """Check what the store remembers of users' mail against all rows. Return how many users it knows."""
    counted = (
        "SELECT COUNT(*), COALESCE(SUM(u.size_bytes), 0) FROM by_uid u"
        " WHERE u.mailbox IN (SELECT id FROM chain WHERE user = ?)"
    )
    for user, usage in store._usages._known.items():
        assert usage == connection_of(store).execute(counted, (user,)).fetchone(), f"{store.origin}: mail of {user}"
    return len(store._usages._known)


def check_tally(store: Store) -> None:
    """Check the sum over what the store shows, the count under way, and known digests against all rows."""
    chains = queries.chains_of(connection_of(store), None)
    adds = {chain.id: (NOTHING, shown(chain)) for chain in chains}
    if store.tally is not None:
        assert store.tally == Tally().changed(adds.values()), f"{store.origin}: the digest of everything"
        assert store.tally == tallies.load(connection_of(store)), f"{store.origin}: the digest on disk"
    count = store._writer._memory.count
    counted = Tally().changed(change for chain_id, change in adds.items() if count.has(chain_id))
    assert count.tally == counted, f"{store.origin}: the count so far"
    digests = store.shown_digests
    if digests._known is not None:
        followed = digests._known.patched(digests._changed)
        assert dict(followed.items("")) == {chain_id: now[0] for chain_id, (_, now) in adds.items()}, store.origin


def guid(number: int) -> bytes:
    return number.to_bytes(16)


def source(number: int, uid: int | None = None) -> CopySource:
    return CopySource(uid or number, guid(number), guid(1000 + number))


# ---- jobs: each helper returns a function of the transaction --------------------------------------------------

T = TypeVar("T")
Job = Callable[[Transaction], T]


def saving(body: bytes, message_guid: bytes, key: MailboxKey = INBOX, flags: Sequence[str] = ()) -> Job[Placed]:
    stored = StoredBody.of(body)
    return lambda tx: sequencer.save(tx, key, stored, guid=message_guid, received_ms=1_000, flags=flags)


def copying(source: MailboxKey, wanted: Sequence[CopySource], key: MailboxKey) -> Job[Placed | None]:
    return lambda tx: sequencer.copy(tx, source.mailbox_id, wanted, key)


def expunging(*uids: int, key: MailboxKey = INBOX) -> Job[Dot | None]:
    return lambda tx: sequencer.expunge(tx, key, UidSet.of(uids))


def flagging(
    *uids: int,
    added: Sequence[str] = (),
    removed: Sequence[str] = (),
    unchanged_since: int | None = None,
    key: MailboxKey = INBOX,
) -> Job[Flagged]:
    return lambda tx: sequencer.store(
        tx, key, UidSet.of(uids), added=added, removed=removed, unchanged_since=unchanged_since
    )


def creating(name: str, mailbox_id: bytes, user: str = ALICE) -> Job[Dot]:
    return lambda tx: folder_sequencer.create_folder(tx, user, name, mailbox_id, spare_ids=spare_ids(mailbox_id, name))


def renaming(mailbox_id: bytes, name: str, user: str = ALICE) -> Job[Dot]:
    return lambda tx: folder_sequencer.rename_folder(tx, user, mailbox_id, name, spare_ids=spare_ids(mailbox_id, name))


def deleting(mailbox_id: bytes, user: str = ALICE) -> Job[Dot]:
    return lambda tx: folder_sequencer.delete_folder(tx, user, mailbox_id)


def subscribing(name: str, *, subscribed: bool = True, user: str = ALICE) -> Job[Dot | None]:
    return lambda tx: folder_sequencer.subscribe(tx, user, name, subscribed=subscribed)


def annotating(mailbox_id: bytes = NOWHERE, user: str = ALICE, **values: bytes | None) -> Job[Dot | None]:
    """Set `/private/NAME` to the values."""
    named = [(f"/private/{name}", value) for name, value in values.items()]
    return lambda tx: folder_sequencer.annotate(tx, user, mailbox_id, named)


def keeping(mailbox_id: bytes, uidvalidity: int | bytes | None, user: str = ALICE) -> Job[Dot | None]:
    """Give a folder the UIDVALIDITY of another server, or its own again."""
    value = b"%d" % uidvalidity if isinstance(uidvalidity, int) else uidvalidity
    return lambda tx: folder_sequencer.annotate(tx, user, mailbox_id, [(KEPT_UIDVALIDITY, value)])


def spare_ids(mailbox_id: bytes, name: str) -> Iterator[bytes]:
    """Return new ids that follow from the request."""
    return (blake2b(b"%b%a%d" % (mailbox_id, name, number), digest_size=16).digest() for number in count())


# ---- reading ---------------------------------------------------------------------------------------------------


async def save(store: Store, number: int, key: MailboxKey = INBOX, flags: Sequence[str] = ()) -> int:
    """Save the message with this number, and return its UID."""
    placed = await store.write(saving(b"text %d" % number, guid(number), key, flags))
    return placed.uids[0]


async def fresh_messages(store: Store, key: MailboxKey = INBOX) -> list[Message]:
    """Return the messages that a new view would be loaded from."""
    return (await store.read(lambda reader: queries.messages(reader, key.mailbox_id)))[1]


def assert_same_view(view: MailboxView, messages: Sequence[Message]) -> None:
    """Check that the view shows these messages, and that its index by flag follows from them."""
    assert list(view.messages.values()) == list(messages)
    flags = {flag for message in messages for flag in message.flags}
    assert {flag: list(uids) for flag, uids in view.by_flag.items()} == {
        flag: [message.uid for message in messages if flag in message.flags] for flag in flags
    }


@contextmanager
def without_histories(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nodes number entries as earlier versions did: without histories and save dates."""
    next_entry = Transaction.next_entry

    def numbered(tx: Transaction, chain_id: bytes, user: str, uidvalidity: int, changes: Sequence[Change]) -> Entry:
        return replace(next_entry(tx, chain_id, user, uidvalidity, changes), histories=None, dated=False)

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "next_entry", numbered)
        yield
