"""Bodies that get an outline, their order, and the end of an outline."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import pytest

from protocol.commands import Parts
from replicator.store.bodies import deletion_candidates
from replicator.store.bodies.body_rows import StoredBody, replace_body, write_body
from replicator.store.bodies.outline_rows import OUTLINE_MAX_BYTES, outlines, unoutlined, write_outlines
from tests.store import consistency
from tests.store.memory_node import MemoryNode

BODIES = [b"first", b"second", b"third"]
HASHES = [sha256(body).digest() for body in BODIES]


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    node = MemoryNode("dc1.a")
    add(node, *BODIES)
    yield node
    consistency.check_outlines(node.connection)


def add(node: MemoryNode, *bodies: bytes) -> None:
    for body in bodies:
        write_body(node.connection, StoredBody.of(body))


def remove(node: MemoryNode, content_hash: bytes) -> None:
    """Remove a body as retention does."""
    node.connection.execute("INSERT INTO doomed (hash) VALUES (?)", (content_hash,))
    assert deletion_candidates.remove(node.connection, 9, 10**6).bodies == 1


def todo(node: MemoryNode, version: int = 1, bodies: int = 9, size_bytes: int = 10**6) -> list[bytes | Parts | None]:
    return [body.message for body in unoutlined(node.connection, version, bodies, size_bytes)]


def make(node: MemoryNode, version: int, *hashes: bytes) -> None:
    write_outlines(node.connection, {one: b"outline of " + one for one in hashes}, version)


def test_bodies_get_outlines_in_the_order_in_which_they_came(node: MemoryNode) -> None:
    assert todo(node) == BODIES
    assert todo(node, bodies=2) == BODIES[:2]
    assert todo(node, size_bytes=1) == BODIES[:1]
    make(node, 1, *HASHES[:2])
    assert todo(node) == BODIES[2:]
    assert outlines(node.connection, HASHES, 1) == {one: b"outline of " + one for one in HASHES[:2]}
    make(node, 1, HASHES[2])
    assert todo(node) == []


def test_outlines_of_another_version_are_not_read_and_made_anew_after_new_ones(node: MemoryNode) -> None:
    make(node, 1, *HASHES)
    assert outlines(node.connection, HASHES, 2) == {}
    add(node, b"fourth")
    assert todo(node, version=2) == [b"fourth"]
    make(node, 2, sha256(b"fourth").digest())
    assert todo(node, version=2, bodies=2) == BODIES[:2]
    make(node, 2, *HASHES)
    assert todo(node, version=2) == []
    assert outlines(node.connection, HASHES, 2).keys() == {*HASHES}
    assert todo(node, version=1) == [], "an earlier version leaves what a later one has made"


def test_outline_leaves_with_its_body(node: MemoryNode) -> None:
    make(node, 1, *HASHES)
    remove(node, HASHES[2])
    assert outlines(node.connection, HASHES, 1).keys() == {*HASHES[:2]}
    make(node, 1, HASHES[2])  # it was made while the body left
    assert outlines(node.connection, HASHES, 1).keys() == {*HASHES[:2]}
    add(node, b"another")  # under the id that has become free
    assert outlines(node.connection, [sha256(b"another").digest()], 1) == {}
    assert todo(node) == [b"another"]


def test_body_that_replaces_a_damaged_one_is_outlined(node: MemoryNode) -> None:
    node.connection.execute("UPDATE content SET body = x'00' WHERE hash = ?", (HASHES[1],))
    assert todo(node) == [BODIES[0], None, BODIES[2]]
    write_outlines(node.connection, dict.fromkeys(HASHES, b""), 1)
    assert todo(node) == []
    replace_body(node.connection, StoredBody.of(BODIES[1]))
    assert todo(node) == [BODIES[1]]


def test_outline_that_is_empty_or_too_large_is_not_kept(node: MemoryNode) -> None:
    write_outlines(
        node.connection,
        dict(zip(HASHES, (b"", bytes(OUTLINE_MAX_BYTES), bytes(OUTLINE_MAX_BYTES + 1)), strict=True)),
        1,
    )
    assert outlines(node.connection, HASHES, 1) == {HASHES[1]: bytes(OUTLINE_MAX_BYTES)}
    assert todo(node) == []


@pytest.mark.parametrize("damage", ["x'00'", "substr(packed, 1, 12)", "'text'", "replace(packed, x'6f66', x'6f67')"])
def test_damaged_outline_is_left_out(node: MemoryNode, damage: str) -> None:
    make(node, 1, *HASHES)
    node.connection.execute(f"UPDATE outline SET packed = CAST({damage} AS BLOB) WHERE id = 1")
    assert outlines(node.connection, HASHES, 1).keys() == {*HASHES[1:]}
