"""Checks that a message's body is whole on a machine's disk, with all its attachments, even after a loss of power.

They read the disk and do not trust the node's own statements.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256

from protocol.commands import Parts
from replicator.store.attachments import linking, names
from replicator.store.attachments.construction import Holding
from replicator.store.bodies.attachment_ranges import AttachedSlice
from replicator.store.bodies.body_rows import holdings_of, read_body
from replicator.store.bodies.recipe import Recipe
from tests.attachments.file_systems.memory import MemoryFiles
from tests.simulation.machine import Machine
from tests.store.harness import connection_of


def holds_bodies(machine: Machine, content_hashes: list[bytes]) -> bool:
    """Return True if all bodies of these hashes are whole there. The machine may be down."""
    with _database(machine) as connection:
        return all(_is_whole(connection, machine.disk.files, content_hash) for content_hash in content_hashes)


@contextmanager
def _database(machine: Machine) -> Iterator[sqlite3.Connection]:
    if machine.life is not None:
        yield connection_of(machine.life.node.store)
        return
    with closing(sqlite3.connect(machine.disk.path)) as connection:
        yield connection


def _is_whole(connection: sqlite3.Connection, files: MemoryFiles, content_hash: bytes) -> bool:
    body = read_body(connection, content_hash)
    if not isinstance(body, Parts):
        return body is not None
    recipe = Recipe.unpack(body.recipe)
    attachments = {holding.hash: _attachment(files, holding) for holding in holdings_of(connection, content_hash)}
    if any(attachments.get(attached.hash) is None for attached in recipe.distinct):
        return False
    return sha256(b"".join(_octets(recipe, attachments))).digest() == content_hash


def _octets(recipe: Recipe, attachments: Mapping[bytes, bytes | None]) -> Iterator[bytes]:
    for piece in recipe.slices(0, recipe.length):
        if isinstance(piece, AttachedSlice):
            start, end = piece.source
            piece = piece.octets((attachments[piece.attached.hash] or b"")[start:end])  # noqa: PLW2901
        yield piece


def _attachment(files: MemoryFiles, holding: Holding) -> bytes | None:
    """Return an attachment's octets, or None if a loss of power may take its holder or its content."""
    place = names.s_name(holding.holder) if holding.kept else names.Algorithms().h_name(holding.hash)
    listed = files.certain(place)
    content = linking.content_in(listed) if isinstance(listed, frozenset) else None
    if content is None or files.certain(f"{names.holders(place)}/{holding.holder}") is None:
        return None
    data = files.certain(f"{place}/{content}")
    return data if isinstance(data, bytes) else None
