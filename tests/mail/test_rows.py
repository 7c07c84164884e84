"""Rows and texts of which all but a few are in a scratch file: they are those that were added."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.dsync.rules.mails import ascending
from replicator.dsync.rules.mails.ascending import AscendingTexts
from replicator.errors import DiskFullError, UnavailableError
from replicator.mail import rows
from replicator.mail.rows import KEY_BYTES, Rows
from replicator.mail.scratch import Scratch

BLOCK = 3
ROW_BYTES = KEY_BYTES + 2
KEYS = st.lists(st.integers(0, 40), max_size=20, unique=True).map(sorted)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Let the third block, of three rows or a few octets of texts, be in the file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK_ROWS", BLOCK)
        patch.setattr(rows, "BLOCKS_IN_MEMORY", 2)
        patch.setattr(ascending, "BLOCK_BYTES", 2 * BLOCK)
        patch.setattr(ascending, "BLOCKS_IN_MEMORY", 2)
        yield


def row_of(key: int) -> bytes:
    return key.to_bytes(KEY_BYTES, "little") + bytes([key % 3, key % 5])


@given(KEYS, st.integers(0, 20), st.integers(0, 20), st.integers(0, 41))
def test_rows_are_those_that_were_added(keys: Sequence[int], start: int, stop: int, key: int) -> None:
    with closing(Scratch(TemporaryFile)) as scratch:
        for held in (Rows(ROW_BYTES), Rows(ROW_BYTES, scratch)):
            for one in keys:
                held.add(row_of(one))
            added = [row_of(one) for one in keys]
            assert len(held) == len(keys)
            assert [held.row(at) for at in range(len(keys))] == added
            assert b"".join(held.pieces(start, stop)) == b"".join(added[start:stop])
            assert held.first_at(key) == sum(one < key for one in keys)
            found = held.search(bytes([1]), KEY_BYTES, start, stop)
            assert [*found] == [at for at in range(len(keys))[start:stop] if keys[at] % 3 == 1]
            with pytest.raises(IndexError):
                held.row(len(keys))


@given(KEYS.filter(bool), st.data())
def test_a_row_is_overwritten_behind_its_key(keys: Sequence[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(keys) - 1))
    with closing(Scratch(TemporaryFile)) as scratch:
        held = Rows(ROW_BYTES, scratch)
        for key in keys:
            held.add(row_of(key))
        held.row(at)  # so its block has been read
        held.overwrite(at, KEY_BYTES + 1, b"\xff")
        expected = [row_of(key) for key in keys]
        expected[at] = expected[at][:-1] + b"\xff"
        assert [held.row(place) for place in range(len(keys))] == expected


@given(st.dictionaries(st.integers(1, 40), st.text(max_size=5)))
def test_texts_are_those_that_were_added(texts: dict[int, str]) -> None:
    with closing(Scratch(TemporaryFile)) as scratch:
        for held in (AscendingTexts(), AscendingTexts(scratch)):
            for uid in sorted(texts):
                held.add(uid, texts[uid])
            assert {uid: held.find(uid) for uid in range(42)} == {uid: texts.get(uid) for uid in range(42)}
            assert len(held) == len(texts)


def full() -> BinaryIO:
    return Path("/dev/full").open("w+b")


def test_a_full_disk_is_told_in_words() -> None:
    with closing(Scratch(full)) as scratch:
        held = Rows(ROW_BYTES, scratch)
        for key in range(3 * BLOCK - 1):
            held.add(row_of(key))
        with pytest.raises(DiskFullError, match="the disk of this node takes no more: No space left on device"):
            held.add(row_of(3 * BLOCK))


def test_a_file_that_has_lost_its_end_is_told_in_words() -> None:
    opened = TemporaryFile()  # noqa: SIM115 - the scratch file closes it
    with closing(Scratch(lambda: opened)) as scratch:
        held = Rows(ROW_BYTES, scratch)
        for key in range(4 * BLOCK):
            held.add(row_of(key))
        os.ftruncate(opened.fileno(), 1)
        with pytest.raises(UnavailableError, match="has lost a part of a scratch file"):
            held.row(3 * BLOCK)


def test_a_disk_that_takes_a_part_at_a_time_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: whole(file, data[:2], at))
    with closing(Scratch(TemporaryFile)) as scratch:
        held = Rows(ROW_BYTES, scratch)
        for key in range(4 * BLOCK):
            held.add(row_of(key))
        held.overwrite(3 * BLOCK, 1, b"\1\2\3\4\5")
        assert held.row(3 * BLOCK) == row_of(3 * BLOCK)[:1] + b"\1\2\3\4\5"
        assert [held.row(at) for at in range(3 * BLOCK)] == [row_of(key) for key in range(3 * BLOCK)]


def test_a_file_that_cannot_be_opened_is_told_in_words() -> None:
    def no_file() -> BinaryIO:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with closing(Scratch(no_file)) as scratch, pytest.raises(UnavailableError, match="written: Too many open files"):
        scratch.write(b"x")


def test_a_small_list_needs_no_file() -> None:
    def no_file() -> BinaryIO:
        raise AssertionError

    held = Rows(ROW_BYTES, Scratch(no_file))
    for key in range(3 * BLOCK - 1):
        held.add(row_of(key))
    assert held.row(0) == row_of(0)
