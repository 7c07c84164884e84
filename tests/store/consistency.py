"""Invariants of a `node.db`, which hold at any time. Every test that opens a store checks them on closing.

The checks compute everything anew from the log and the rows, in a slow and simple way. The last one replays the log
into an empty database. If the log does not lead to all that the node shows, because it begins later or because a state
was adopted from another node, the checks that need the whole log are left out.
"""

import sqlite3
from collections import Counter
from pathlib import Path

from protocol.commands import Parts
from protocol.values import Dot, covers
from replicator.mail.view import SEEN
from replicator.store.bodies.body_rows import read_body, size_of
from replicator.store.db import queries, schema
from replicator.store.db.rows.message_rows import message_of
from replicator.store.db.transaction import NONE_BEFORE
from replicator.store.log.apply import APPLIED
from resync import row as rows
from resync.entry import Entry, MailAdd
from resync.folder_tree import GIVEN_UP, UNITED
from tests.store.memory_node import MemoryNode, digests
from tests.store.stamp_order import replay_by_stamps

REPLAYED_TOGETHER = 100  # entries that are replayed in one transaction


class LogRow:
    """One row of table log, with its entry unpacked."""

    def __init__(self, columns: tuple[int, str, int, int, bytes, int, int, bytes]) -> None:
        self.position, origin, seq, self.time, self.chain, self.applied, self.offset_bytes, body = columns
        self.entry = Entry.unpack(Dot(origin, seq), body)
        self.body_bytes = len(body)

    @property
    def own_bytes(self) -> int:
        return self.body_bytes + sum(self.new_bodies().values())

    def new_bodies(self) -> dict[bytes, int]:
        """Return the hash and size of each body that came with the entry."""
        return {
            change.content_hash: change.size_bytes
            for change in self.entry.changes
            if isinstance(change, MailAdd) and not change.copied
        }


def check_file(path: Path, *, has_sound_histories: bool = True) -> None:
    connection = schema.open_reader(path)
    try:
        check(connection, has_sound_histories=has_sound_histories)
    finally:
        connection.close()


def check(connection: sqlite3.Connection, *, has_sound_histories: bool = True) -> None:
    """Check all invariants. Without `has_sound_histories`, no log need lead to what a node shows."""
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    log = _read_log(connection)
    _check_origins(connection, log)
    _check_waiting(connection, log)
    _check_mailboxes(connection)
    _check_trees(connection)
    _check_guids(connection)
    _check_expunged(connection)
    check_outlines(connection)
    if _has_whole_log(connection) and all(item.applied in {0, APPLIED} for item in log):
        _check_projections(connection, log)
        _check_heads(connection, log, has_sound_histories=has_sound_histories)
        _check_content(connection, log)
        _check_lacking(connection)
        if has_sound_histories:
            _check_replay(connection, log)
        _check_stamp_order(connection, log)


def check_outlines(connection: sqlite3.Connection) -> None:
    """Check that outlines have bodies, and that new bodies come after all that have been looked at."""
    query = "SELECT id FROM outline EXCEPT SELECT id FROM content"
    assert connection.execute(query).fetchall() == [], "outlines of bodies that have left"
    query = "SELECT id FROM content WHERE id < (SELECT MAX(id) FROM outline) EXCEPT SELECT id FROM outline"
    assert connection.execute(query).fetchall() == [], "bodies that are never looked at"


def _has_whole_log(connection: sqlite3.Connection) -> bool:
    context = queries.log_context(connection)
    shown = queries.chains_of(connection, None)
    return not queries.log_collected(connection) and all(covers(context, chain.context) for chain in shown)


def _read_log(connection: sqlite3.Connection) -> list[LogRow]:
    log = [
        LogRow(columns)
        for columns in connection.execute(
            "SELECT position, origin, seq, time, chain, applied, offset_bytes, body FROM log ORDER BY position"
        )
    ]
    if not queries.log_collected(connection):
        assert [item.position for item in log] == list(range(1, len(log) + 1)), "positions have gaps"
    for item in log:
        assert (item.time, item.chain) == (item.entry.time, item.entry.mailbox_id)
    return log


def _check_waiting(connection: sqlite3.Connection, log: list[LogRow]) -> None:
    waiting = {
        (item.chain, *before, *item.entry.dot)
        for item in log
        if not item.applied
        for before in item.entry.predecessors or (NONE_BEFORE,)
    }
    assert set(connection.execute("SELECT chain, after_origin, after_seq, origin, seq FROM waiting")) == waiting


def _check_origins(connection: sqlite3.Connection, log: list[LogRow]) -> None:
    seqs: Counter[str] = Counter(queries.log_collected(connection))
    offsets: dict[str, int] = {}
    for item in log:
        origin, seq = item.entry.dot
        if seq <= queries.log_collected(connection).get(origin, 0):
            continue  # an entry of a branch that cannot be joined, or one kept as evidence after damage
        seqs[origin] += 1
        assert seq == seqs[origin], "an origin's entries are out of order"
        before = offsets.get(origin, 0 if seq == 1 else item.offset_bytes - item.own_bytes)
        offsets[origin] = before + item.own_bytes
        assert item.offset_bytes == offsets[origin]
    assert queries.log_context(connection) == dict(seqs)
    shipped = dict(connection.execute("SELECT name, offset_bytes FROM origin"))
    assert all(shipped[origin] == offset for origin, offset in offsets.items())


def _check_guids(connection: sqlite3.Connection) -> None:
    by_uid = set(connection.execute("SELECT guid, mailbox, uid, origin, seq, change FROM by_uid"))
    assert by_uid == set(connection.execute("SELECT guid, mailbox, uid, origin, seq, change FROM by_guid"))


def _check_projections(connection: sqlite3.Connection, log: list[LogRow]) -> None:
    by_uid = connection.execute("SELECT guid, mailbox, uid, origin, seq, change FROM by_uid")
    entries = {item.entry.dot: item for item in log}
    for guid, mailbox, _, origin, seq, change in by_uid:
        item = entries[Dot(origin, seq)]
        assert item.applied
        assert item.chain == mailbox
        added = item.entry.changes[change]
        assert isinstance(added, MailAdd)
        assert added.guid == guid


def _check_heads(connection: sqlite3.Connection, log: list[LogRow], *, has_sound_histories: bool) -> None:
    contexts: dict[bytes, dict[str, int]] = {}
    heads: dict[bytes, Entry] = {}
    for item in log:
        if item.applied:
            context = contexts.setdefault(item.chain, {})
            context[item.entry.dot.origin] = max(context.get(item.entry.dot.origin, 0), item.entry.dot.seq)
            if item.chain not in heads or heads[item.chain].modseq < item.entry.modseq:
                heads[item.chain] = item.entry
    chains = {chain.id: chain for chain in queries.chains_of(connection, None)}
    assert set(chains) == set(heads)
    for chain_id, head in heads.items():
        chain = chains[chain_id]
        assert (chain.head, chain.highestmodseq) == (head.dot, head.modseq)
        assert chain.history == head.history or not has_sound_histories
        assert (chain.user, chain.uidvalidity == 0) == (head.user, head.is_tree)
        assert chain.context == contexts[chain_id]


def _check_mailboxes(connection: sqlite3.Connection) -> None:
    chains = [chain for chain in queries.chains_of(connection, None) if chain.uidvalidity]
    for chain in chains:
        mailbox = list(queries.mailbox_rows(connection, chain.id))
        messages = [message_of(row) for row in mailbox]
        assert chain.messages == len(messages)
        assert chain.unseen == sum(SEEN not in message.flags for message in messages)
        assert chain.size_bytes == sum(message.size_bytes for message in messages)
        assert chain.uidnext > max((message.uid for message in messages), default=0)
        assert chain.highestmodseq >= max((message.modseq for message in messages), default=0)
        fingerprints = [(row.guid, row.fingerprint()) for row in mailbox]
        assert chain.fingerprint == rows.add(0, *(value for _, value in fingerprints))
        assert list(queries.fingerprints(connection, chain.id)) == fingerprints
    known = {mailbox for (mailbox,) in connection.execute("SELECT DISTINCT mailbox FROM by_uid")}
    assert known <= {chain.id for chain in chains}


def _check_trees(connection: sqlite3.Connection) -> None:
    trees = [chain for chain in queries.chains_of(connection, None) if not chain.uidvalidity]
    for tree in trees:
        folders = connection.execute(
            "SELECT mailbox_id, user, name, uidvalidity, deleted, time, sid FROM folder WHERE user = ?", (tree.user,)
        ).fetchall()
        subscriptions = connection.execute(
            "SELECT user, name, subscribed, time, sid FROM subscription WHERE user = ?", (tree.user,)
        ).fetchall()
        annotations = connection.execute(
            "SELECT user, mailbox_id, name, value, time, sid FROM annotation WHERE user = ?", (tree.user,)
        ).fetchall()
        assert tree.fingerprint == rows.add(0, *map(rows.fingerprint, folders + subscriptions + annotations))
        by_user = {mailbox_id for mailbox_id, *_, deleted, _, sid in folders if deleted and sid != UNITED}
        assert not by_user & {mailbox_id for _, mailbox_id, *_ in annotations}, "a deleted folder has annotations"
        living = [name for _, _, name, _, deleted, *_ in folders if not deleted]
        assert len(set(living)) == len(living), "two folders have one name"
        named = [(name, uidvalidity) for _, _, name, uidvalidity, _, _, sid in folders if sid != GIVEN_UP]
        assert len(set(named)) == len(named), "two mailboxes had one name and UIDVALIDITY"


def _check_content(connection: sqlite3.Connection, log: list[LogRow]) -> None:
    """Check that waiting entries have their bodies, and that each stored body has been named by an entry.

    A body is removed when no message has it any more, which may be before its entry leaves the log.
    """
    for item in log:
        for content_hash, size in item.new_bodies().items():
            body = read_body(connection, content_hash)
            assert body is not None or item.applied, f"{item.entry.dot} waits without its body"
            assert body is None or size_of(body) == size
    held = {content_hash for (content_hash,) in connection.execute("SELECT hash FROM content")}
    added = {change.content_hash for item in log for change in item.entry.changes if isinstance(change, MailAdd)}
    kept = {
        content_hash for (content_hash,) in connection.execute("SELECT content_hash FROM expunged WHERE mailbox = x''")
    }
    assert held <= added | kept, "a stored body was named by no entry"


def _check_lacking(connection: sqlite3.Connection) -> None:
    """Check that each shown body is stored or is to be fetched.

    A copy may name a body that this node has removed, and that the copy's author still has.
    """
    shown = _column(connection, "SELECT content_hash FROM by_uid")
    known = _column(connection, "SELECT hash FROM content UNION SELECT hash FROM lacking")
    astray = [content_hash.hex() for content_hash in shown - known]
    assert not astray, f"bodies of messages are neither stored nor to be fetched: {astray[:3]}"


def _column(connection: sqlite3.Connection, query: str) -> set[bytes]:
    return {value for (value,) in connection.execute(query)}


def named_bodies(connection: sqlite3.Connection) -> set[bytes]:
    """Return the hashes of the bodies that shown messages, kept expunged messages and waiting entries name."""
    query = "SELECT content_hash FROM by_uid UNION SELECT content_hash FROM expunged"
    named = {content_hash for (content_hash,) in connection.execute(query)}
    for origin, seq, body in connection.execute("SELECT origin, seq, body FROM log WHERE applied = 0"):
        for change in Entry.unpack(Dot(origin, seq), body).changes:
            named |= {change.content_hash} if isinstance(change, MailAdd) else set()
    return named


def _check_expunged(connection: sqlite3.Connection) -> None:
    both = "SELECT guid FROM expunged e JOIN by_guid g USING (mailbox, guid)"
    assert connection.execute(both).fetchall() == [], "a shown message is also kept as expunged"


def _check_stamp_order(connection: sqlite3.Connection, log: list[LogRow]) -> None:
    heads = {chain.head: chain for chain in queries.chains_of(connection, None) if chain.uidvalidity}
    shown = replay_by_stamps(item.entry for item in log if item.applied)
    for head, chain in heads.items():
        assert head is not None
        if head not in shown:
            continue  # a merge has it as its second predecessor, and shows the same
        found = shown[head]
        assert list(queries.mailbox_rows(connection, chain.id)) == [found.rows[uid] for uid in sorted(found.rows)]
        assert (chain.uidnext, chain.highestmodseq, chain.risen) == (found.uidnext, found.modseq, found.risen)
        assert chain.context == found.context


def _bodies(connection: sqlite3.Connection, item: LogRow) -> list[bytes | Parts]:
    """Return the bodies that came with the entry and are still stored."""
    bodies = (read_body(connection, content_hash) for content_hash in item.new_bodies())
    return [body for body in bodies if body is not None]


def _check_replay(connection: sqlite3.Connection, log: list[LogRow]) -> None:
    node = MemoryNode("replay.0", now_ms=4_000_000_000_000)
    for start in range(0, len(log), REPLAYED_TOGETHER):
        node.receive_together(
            (item.entry, _bodies(connection, item)) for item in log[start : start + REPLAYED_TOGETHER]
        )
    if any(commit.mismatched for commit in node.commits):
        return  # a node whose history was altered has numbered or merged: no log alone leads to what is shown
    assert node.digests() == digests(connection)
    held = {content_hash for (content_hash,) in connection.execute("SELECT hash FROM content")}
    is_whole = all(content_hash in held for item in log for content_hash in item.new_bodies())
    offset = ", offset_bytes" if is_whole else ""  # the offset counts bodies
    shown = [f"SELECT * FROM {table}" for table in ("by_uid", "by_guid", "folder", "subscription", "annotation")]
    for query in (*shown, f"SELECT name, seq, collected{offset} FROM origin"):
        assert set(node.connection.execute(query)) == set(connection.execute(query)), query
    query = f"SELECT position, applied{offset} FROM log"
    assert node.connection.execute(query).fetchall() == connection.execute(query).fetchall()
    node.connection.close()
