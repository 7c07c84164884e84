"""Writing a body that the database already has; reading bodies together."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from protocol.commands import Parts
from replicator.store.attachments.construction import Holding
from replicator.store.bodies.body_rows import (
    StoredBody,
    holdings_of,
    read_body,
    read_small_bodies,
    write_body,
)
from replicator.store.db import schema

BODY = b"body" * 100
PLAIN = StoredBody.of(BODY)
PARTS = Parts(PLAIN.content_hash, len(BODY), b"recipe")


def holding(number: int, part: int = 1) -> Holding:
    return Holding(sha256(b"%d" % part).digest(), f"s{'0' * 32}i{number}")


def in_parts(*holdings: Holding) -> StoredBody:
    return StoredBody.of_recipe(PARTS, holdings)


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(schema.open_writer(Path(":memory:"))) as connection:
        yield connection


def stored_state(database: sqlite3.Connection) -> tuple[object, list[Holding]]:
    return read_body(database, PLAIN.content_hash), holdings_of(database, PLAIN.content_hash)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE content SET body = x'00'",
        "UPDATE content SET body = 'text'",
        "UPDATE content SET size_bytes = 1",
        "UPDATE content SET parted = 1 - parted",
    ],
)
@pytest.mark.parametrize("stored", [PLAIN, in_parts(holding(1), holding(2, 2))])
def test_damaged_body_is_replaced(database: sqlite3.Connection, stored: StoredBody, damage: str) -> None:
    write_body(database, stored)
    database.execute(damage)
    write_body(database, stored)
    assert stored_state(database) == (stored.message, list(stored.holdings))


def test_existing_holders_of_a_body_stay(database: sqlite3.Connection) -> None:
    """The holders stay even if the same recipe was compressed in another way."""
    write_body(database, in_parts(holding(1)))
    for body in (in_parts().packed, StoredBody.of(PARTS.recipe).packed):
        database.execute("UPDATE content SET body = ?", (body,))
        write_body(database, in_parts(holding(2)))
        assert stored_state(database) == (PARTS, [holding(1)])


def test_missing_holders_of_a_body_are_recorded(database: sqlite3.Connection) -> None:
    write_body(database, in_parts(holding(1), holding(2, 2)))
    database.execute("DELETE FROM attachment WHERE hash = ?", (holding(2, 2).hash,))
    write_body(database, in_parts(holding(3), holding(4, 2)))
    assert stored_state(database) == (PARTS, sorted([holding(3), holding(4, 2)], key=lambda held: held.hash))


def test_plain_body_replaces_a_recipe_but_not_vice_versa(
    database: sqlite3.Connection,
) -> None:
    write_body(database, in_parts(holding(1)))
    write_body(database, PLAIN)
    assert stored_state(database) == (BODY, [])
    write_body(database, in_parts(holding(2)))
    assert stored_state(database) == (BODY, [])


def test_small_bodies_are_read_together_as_far_as_they_fit(database: sqlite3.Connection) -> None:
    bodies = [StoredBody.of(b"%d" % number * size) for number, size in enumerate((10, 500, 20, 10))]
    for stored in (*bodies, in_parts(holding(1))):
        write_body(database, stored)
    hashes = [stored.content_hash for stored in (*bodies[:2], bodies[0], in_parts(), *bodies[2:])]
    found = read_small_bodies(database, [*hashes, b"?" * 32], 35)
    assert found == {stored.content_hash: stored.message for stored in (bodies[0], bodies[2])}
    assert len(read_small_bodies(database, hashes, 540)) == 4


@pytest.mark.parametrize("damage", ["body = x'00'", "body = 'text'", "size_bytes = 1 << 40"])
def test_damaged_bodies_are_not_read_together(database: sqlite3.Connection, damage: str) -> None:
    write_body(database, PLAIN)
    assert read_small_bodies(database, [PLAIN.content_hash], 1000)
    database.execute(f"UPDATE content SET {damage}")
    assert not read_small_bodies(database, [PLAIN.content_hash], 1000)
