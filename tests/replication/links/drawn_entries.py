"""Entries that Hypothesis draws, and their way over a link as commands."""

from __future__ import annotations

from hypothesis import strategies as st

from protocol.commands import EntryCommand
from protocol.stream_codec import Decoder, Encoder, Request
from protocol.values import UID_MAX
from replicator.replication.links.entry_codec import Arrived, EntryAssembler, entry_commands
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Logged
from resync.entry import (
    NOWHERE,
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderSubscribe,
    MailAdd,
    MailDel,
    Raise,
    tree_id,
)
from tests.protocol.strategies import (
    dates,
    dots,
    flags,
    hashes,
    histories,
    ids,
    numbers,
    numbers_32,
    texts,
    tuples_of,
    uid_sets,
    uids,
)

some_flags = st.lists(flags, min_size=1, max_size=4).map(tuple)
scattered = uid_sets.filter(bool)
adds = st.builds(MailAdd, uids, ids, dates, st.lists(flags, max_size=4).map(tuple), numbers, hashes, st.booleans())
mail_changes = st.one_of(
    adds, st.builds(MailDel, scattered), st.builds(FlagAdd, scattered, some_flags),
    st.builds(FlagDel, scattered, some_flags), st.builds(Raise, uids),
)  # fmt: skip
tree_changes = st.one_of(
    st.builds(FolderCreate, ids, texts, numbers_32), st.builds(FolderRename, ids, texts),
    st.builds(FolderDelete, ids), st.builds(FolderSubscribe, texts, st.booleans()),
    st.builds(FolderAnnotate, ids | st.just(NOWHERE), tuples_of(st.tuples(texts, st.none() | hashes))),
)  # fmt: skip
predecessors = st.lists(dots, max_size=2).map(tuple)


@st.composite
def logged_entries(draw: st.DrawFn) -> Logged:
    """Draw an entry of a mailbox or a tree, with the bodies of all added messages that are not copies."""
    kind = draw(st.sampled_from(["mail", "tree"]))
    user = draw(texts)
    changes: list[Change] = []
    known: dict[bytes, StoredBody] = {}
    for change in draw(st.lists(mail_changes if kind == "mail" else tree_changes, min_size=1, max_size=5)):
        if isinstance(change, MailAdd) and not change.copied:
            stored = StoredBody.of(draw(st.binary(max_size=100)))
            known[stored.content_hash] = stored
            changes.append(change._replace(size_bytes=stored.size_bytes, content_hash=stored.content_hash))
        else:
            changes.append(change)
    mailbox_id, uidvalidity = (draw(ids), draw(st.integers(1, UID_MAX))) if kind == "mail" else (tree_id(user), 0)
    entry = Entry(
        draw(dots), draw(predecessors), draw(numbers), draw(numbers), user, mailbox_id, uidvalidity, tuple(changes),
        draw(histories), draw(st.booleans()),
    )  # fmt: skip
    return Logged(1, entry, 0, known)


def over_the_wire(logged: Logged) -> list[Arrived]:
    """Send an entry through an encoder, a decoder and an assembler, with the mailbox numbers of a link."""
    numbered: dict[int, MailboxKey] = {}
    encoder, decoder, assembler = Encoder(), Decoder(), EntryAssembler(numbered.__getitem__)

    def number(key: MailboxKey) -> int:
        numbered[7] = key
        return 7

    arrived = []
    for command in entry_commands(logged, number):
        (item,) = decoder.feed(encoder.request(None, command))
        assert isinstance(item, Request)
        assert isinstance(item.command, EntryCommand)
        arrived.append(assembler.add(item.command))
    assert arrived[:-1] == [None] * (len(arrived) - 1)
    return [whole for whole in arrived if whole is not None]
