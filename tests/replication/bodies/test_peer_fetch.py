"""Bodies that are missing or damaged at one node come from another node."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Reply
from replicator.errors import ContentUnavailableError
from replicator.mail.mailstore import read_all
from replicator.replication import timing
from replicator.replication.bodies.from_peers import peer_fetch
from replicator.replication.bodies.from_peers.peer_fetch import AnyFetch, ReadChunk
from replicator.replication.links.link import PeerLink
from replicator.store.bodies.body_rows import StoredBody, replace_body
from replicator.store.db.transaction import Transaction
from replicator.store.store import Store
from tests.replication.cluster import Node, cluster
from tests.store.harness import connection_of

BODY = "the body " * 20
OTHER = StoredBody.of(b"another body")

Damage = Callable[[Transaction, bytes], object]


def lose(tx: Transaction, content_hash: bytes) -> None:
    tx.connection.execute("DELETE FROM content WHERE hash = ?", (content_hash,))


def garble(tx: Transaction, content_hash: bytes) -> None:
    tx.connection.execute("UPDATE content SET body = x'28b52ffd00' WHERE hash = ?", (content_hash,))


def exchange(tx: Transaction, content_hash: bytes) -> None:
    replace_body(tx.connection, StoredBody(content_hash, OTHER.size_bytes, OTHER.packed))


async def damage(node: Node, how: Damage) -> None:
    (message,) = await node.messages()
    await node.store.write(lambda tx: how(tx, message.content_hash))


@pytest.mark.parametrize("how", [lose, garble, exchange])
async def test_damaged_body_is_healed_from_another_node(tmp_path: Path, autojump_clock: MockClock, how: Damage) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save(BODY)
        await nodes.converged()
        for sid in ("dc1", "dc3"):
            await damage(nodes[sid], how)
        assert await nodes["dc3"].bodies() == {1: BODY}
        nodes.isolate("dc3")
        assert await nodes["dc3"].bodies() == {1: BODY}  # stored by now: no peer is linked
        assert await nodes["dc1"].bodies() == {1: BODY}


async def test_body_that_no_node_has_fails_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save(BODY)
        await nodes.converged()
        for node in nodes.all():
            await damage(node, garble)
        (message,) = await nodes["dc1"].messages()
        with pytest.raises(ContentUnavailableError, match="at no reachable node"):
            await nodes["dc1"].mail.read_body(message)
        assert await nodes["dc1"].save("readable") == 2
        second = (await nodes["dc1"].messages())[1]
        assert await read_all(await nodes["dc1"].mail.read_body(second)) == b"readable"
        # The databases must be whole when the nodes stop.
        for node in nodes.all():
            await node.store.write(lambda tx: replace_body(tx.connection, StoredBody.of(BODY.encode())))
        assert (await nodes["dc1"].bodies())[1] == BODY


async def test_wrong_body_from_a_peer_is_requested_from_the_next(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save(BODY)
        await nodes.converged()
        await damage(nodes["dc3"], lose)
        monkeypatch.setattr("replicator.replication.bodies.from_peers.peer_fetch.read_body", wrong_at_first())
        assert await nodes["dc3"].bodies() == {1: BODY}


def wrong_at_first() -> Callable[..., bytes]:
    """Return a `read_body` that does not verify what it reads: a wrong body first, then the right one."""
    answers = [BODY.encode(), b"wrong"]
    return lambda _reader, **_: answers.pop()


async def test_body_is_read_although_the_disk_is_too_full_to_store_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    body = "".join(map(str, range(20_000)))
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save(body)
        await nodes.converged()
        await damage(nodes["dc3"], lose)
        connection = connection_of(nodes["dc3"].store)
        connection.execute("VACUUM")
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        assert await nodes["dc3"].bodies() == {1: body}
        connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
        assert await nodes["dc3"].bodies() == {1: body}


async def test_body_is_read_although_the_database_fails_to_store_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save(BODY)
        await nodes.converged()
        await damage(nodes["dc3"], lose)
        connection = connection_of(nodes["dc3"].store)
        connection.execute(
            "CREATE TEMP TRIGGER failing BEFORE INSERT ON content BEGIN SELECT RAISE(FAIL, 'disk I/O error'); END"
        )
        assert await nodes["dc3"].bodies() == {1: BODY}
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        with pytest.raises(ContentUnavailableError):
            await nodes["dc3"].bodies()  # it was indeed not stored
        connection.execute("DROP TRIGGER failing")
        nodes.rejoin("dc3")
        await nodes.linked()
        assert await nodes["dc3"].bodies() == {1: BODY}


async def test_silent_neighbour_does_not_prevent_a_fetch(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save(BODY)
        await nodes.converged()
        answer = peer_fetch.answer_fetch

        async def answer_late(store: Store, link: PeerLink, command: AnyFetch, read_chunk: ReadChunk) -> Reply:
            if store is silent.store:
                await trio.sleep(2 * timing.BODIES_PATIENCE_S)
            return await answer(store, link, command, read_chunk)

        monkeypatch.setattr(peer_fetch, "answer_fetch", answer_late)
        for sid in ("dc1", "dc2"):
            silent = nodes[sid]
            await damage(nodes["dc3"], lose)
            assert await nodes["dc3"].bodies() == {1: BODY}
