"""The files in which a node remembers syncs: what other versions of it have written, and damage, cost work at most."""

from __future__ import annotations

import logging
import zlib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import msgpack
import pytest
import trio

from replicator.dsync.node_mail.last_syncs import PEERS_MAX, LastSync, LastSyncFiles, LastSyncs
from replicator.dsync.rules.given_names import GivenName
from replicator.mail.compact_uids import CompactUids
from tests.dsync.sides import USER

PEER, BOX, FOLDER = "vm 127.0.0.1", b"\x0a" * 16, b"\x0b" * 16
SYNC = LastSync(FOLDER, 7, 5, 1_700_000_000_000, "dc1.1:4", 0, 3, 4, 2, uids=CompactUids.ascending([1, 3]))
OF_VERSION_1: list[tuple[object, ...]] = [
    (PEER, BOX, (FOLDER, 7, 5, 1_700_000_000_000, "dc1.1:4", 0), (3, 4, 2, False), [], [], [], [(1, 1), (3, 3)])
]


def file_of(directory: Path) -> Path:
    name = sha256(USER.encode()).hexdigest()
    return directory / name[:2] / name[2:]


def write(directory: Path, content: object) -> None:
    packed = msgpack.packb(content)
    assert isinstance(packed, bytes)
    file_of(directory).parent.mkdir()
    file_of(directory).write_bytes(zlib.crc32(packed).to_bytes(4) + packed)


async def test_what_is_written_is_read(tmp_path: Path) -> None:
    files, syncs, sync = LastSyncFiles(tmp_path), LastSyncs(), replace(SYNC, gone={4: b"\x0c" * 16})
    syncs.note(PEER, BOX, sync)
    syncs.note_full("dovecot:2425", 1)
    names = {BOX: GivenName(("A", "\udcff"), 5, 4), FOLDER: GivenName(("B",), 3, 2)}
    syncs.note_given_names(names)
    await files.save(USER, syncs)
    found = await files.load(USER)
    assert found.find(PEER, BOX, FOLDER) == sync
    assert found.full == {"dovecot:2425": 1}
    assert found.given_names == names
    found.keep_only({BOX})
    assert found.is_changed
    assert found.given_names.keys() == {BOX}


async def test_a_data_directory_that_is_away_is_not_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The database would begin there with an empty one."""
    syncs = LastSyncs()
    syncs.note_full("dovecot:2425", 1)
    await LastSyncFiles(tmp_path / "data" / "dovecots").save(USER, syncs)
    assert not await trio.Path(tmp_path / "data").exists()
    assert "cannot be written, so what was synced is forgotten" in caplog.text
    await trio.Path(tmp_path / "data").mkdir()
    await LastSyncFiles(tmp_path / "data" / "dovecots").save(USER, syncs)
    assert file_of(tmp_path / "data" / "dovecots").exists()


@pytest.mark.parametrize("content", [(1, OF_VERSION_1), (2, (OF_VERSION_1, [])), (2, (OF_VERSION_1, [], []))])
async def test_earlier_files_are_read(tmp_path: Path, content: object) -> None:
    write(tmp_path, content)
    found = await LastSyncFiles(tmp_path).load(USER)
    assert found.find(PEER, BOX, FOLDER) == SYNC
    assert found.full == {}


async def test_version_1_tells_the_version_of_a_file(tmp_path: Path) -> None:
    """It reads two values, the first of which is the version, and takes a file of another one for a damaged one."""
    syncs = LastSyncs()
    syncs.note_full("dovecot:2425", 1)
    await LastSyncFiles(tmp_path).save(USER, syncs)
    version, _ = msgpack.unpackb(file_of(tmp_path).read_bytes()[4:])
    assert version == 3


@pytest.mark.parametrize("damage", ["later", "cut", "flipped"])
async def test_what_cannot_be_read_is_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    caplog.set_level(logging.WARNING)
    write(tmp_path, (4 if damage == "later" else 1, OF_VERSION_1))
    file = file_of(tmp_path)
    data = bytearray(file.read_bytes())
    if damage == "cut":
        del data[-1]
    elif damage == "flipped":
        data[20] ^= 1
    file.write_bytes(data)
    found = await LastSyncFiles(tmp_path).load(USER)
    assert (found.all(), found.full) == ([], {})
    assert f"{file}: cannot be read" in caplog.text


def of_version_1(*uids: tuple[int, int]) -> tuple[int, object]:
    return 1, [(*OF_VERSION_1[0][:6], uids)]


def with_gone(uid: object, guid: object) -> tuple[int, object]:
    return 2, ([(*OF_VERSION_1[0], [(uid, guid)])], [], [])


@pytest.mark.parametrize(
    "content",
    [
        (3, ([], [5], [])),
        of_version_1((1, 2**33)),
        of_version_1((0, 3)),
        of_version_1((5, 4)),
        of_version_1((5, 6), (1, 2)),
        with_gone(2**32, b"\x0c" * 16),
        with_gone(0, b"\x0c" * 16),
        with_gone(4, b"\x0c"),
        with_gone(4, None),
        with_gone(None, b"\x0c" * 16),
    ],
    ids=str,
)
async def test_what_has_another_form_is_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: object
) -> None:
    write(tmp_path, content)
    found = await LastSyncFiles(tmp_path).load(USER)
    assert (found.all(), found.full) == ([], {})
    assert "cannot be read, so the next sync compares all mails" in caplog.text


def test_the_last_syncs_with_a_few_dovecots_are_remembered() -> None:
    syncs = LastSyncs()
    for number in range(PEERS_MAX):
        syncs.note(str(number), BOX, SYNC)
    syncs.note("0", BOX, SYNC)
    syncs.note("new", BOX, SYNC)
    assert {peer for peer, _, _ in syncs.all()} == {*map(str, range(PEERS_MAX)), "new"} - {"1"}


def test_so_much_is_remembered_of_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the peer that has synced longest ago, the mailbox that was synced longest ago is forgotten."""
    monkeypatch.setattr("replicator.dsync.node_mail.last_syncs.DETAILS_MAX", 3 * SYNC.details)
    syncs = LastSyncs()
    for peer, number in (("a", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5)):
        syncs.note(peer, bytes([number]) * 16, SYNC)
    assert [(peer, mailbox_id[0]) for peer, mailbox_id, _ in syncs.all()] == [("a", 2), ("a", 4), ("b", 5)]


def test_the_full_syncs_of_a_few_dovecots_are_remembered() -> None:
    syncs = LastSyncs()
    for number in range(PEERS_MAX + 1):
        syncs.note_full(str(number), number)
    syncs.note_full("1", 100)
    syncs.note_full("new", 101)
    assert "1" in syncs.full
    assert {"0", "2"}.isdisjoint(syncs.full)
