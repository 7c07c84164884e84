"""Search texts at a door: whatever happens to their file, it finds what the core finds, and the core alone mends it."""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.imap.rendering.search_text import SEARCH_TEXTS
from replicator.mail.mailstore import NewMessage, SearchTextMaker
from replicator.mail.view import Message
from replicator.replication import timing
from replicator.store.db.schema import PAGE_BYTES
from replicator.store.search_texts.form import identity_of
from replicator.workers.door import search_texts as module
from replicator.workers.door.mail import RemoteMail
from tests.one_door import remote_mail
from tests.one_node import HookedMail, one_node
from tests.store.damaging import damage, overwrite

ANEW = "search texts are made anew"
QUICK = timing.SEARCH_TEXTS_EVERY_S / 2


@pytest.fixture
async def mail(tmp_path: Path) -> AsyncIterator[HookedMail]:
    async with one_node(tmp_path) as mail:
        inbox = await mail.folder("alice", "INBOX")
        await mail.save_all(inbox, [NewMessage(b"\r\ntext %d" % number) for number in range(3)])
        yield mail


@pytest.fixture
async def door(mail: HookedMail) -> AsyncIterator[RemoteMail]:
    async with remote_mail(mail) as door:
        yield door


@pytest.fixture
async def messages(mail: HookedMail) -> list[Message]:
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    return [*view.messages.values()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "search.db"


@asynccontextmanager
async def keeping(
    mail: HookedMail, clock: MockClock, maker: SearchTextMaker | None = SEARCH_TEXTS
) -> AsyncIterator[None]:
    """Keep search texts as the core does; those of the bodies that are here are made when the block begins."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mail.keep_search_texts, maker)
        await trio.sleep_until(clock.current_time() + QUICK)
        yield
        nursery.cancel_scope.cancel()


def zero_pages(path: Path) -> None:
    for page in range(2, path.stat().st_size // PAGE_BYTES + 1):
        overwrite(path, page)


def open_files(name: str) -> list[str]:
    """Return the files of this process whose path has this in it."""
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for target in links if name in target]


async def test_a_door_reads_what_the_core_reads(
    mail: HookedMail, door: RemoteMail, messages: list[Message], autojump_clock: MockClock
) -> None:
    assert await door.search_texts(messages) == ({}, 3)
    async with keeping(mail, autojump_clock):
        assert await door.search_texts(messages) == await mail.search_texts(messages)
        assert len((await door.search_texts(messages)).texts) == 3
    assert (await door.search_texts(messages)).texts.keys() <= {message.content_hash for message in messages}
    async with keeping(mail, autojump_clock, None):
        assert await door.search_texts(messages) == ({}, 3)


async def test_a_door_asks_the_core_for_no_search_texts(
    mail: HookedMail, door: RemoteMail, messages: list[Message], autojump_clock: MockClock
) -> None:
    async with keeping(mail, autojump_clock):
        mail.search_texts_task.of = None  # type: ignore[assignment, method-assign]
        assert len((await door.search_texts(messages)).texts) == 3


async def test_damage_that_a_door_finds_has_the_core_begin_anew(
    mail: HookedMail,
    door: RemoteMail,
    messages: list[Message],
    path: Path,
    autojump_clock: MockClock,
    *,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with keeping(mail, autojump_clock):
        sound = await door.search_texts(messages)
        damage(path, "UPDATE search_text SET packed = (SELECT packed FROM search_text ORDER BY id DESC LIMIT 1)")
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(door.search_texts, messages)
        assert await door.search_texts(messages) == ({}, 3)
        await trio.sleep(QUICK)
        assert await door.search_texts(messages) == sound
    assert [record.getMessage().endswith(ANEW) for record in caplog.records] == [True]


async def test_sound_search_texts_stay_although_a_door_has_had_them_checked(
    mail: HookedMail, messages: list[Message], path: Path, autojump_clock: MockClock
) -> None:
    hashes = [message.content_hash for message in messages]
    await mail.check_search_texts(hashes)
    async with keeping(mail, autojump_clock):
        with path.open("rb"):  # so that no other file gets its inode
            before = identity_of(path)
            await mail.check_search_texts(hashes)
            await trio.sleep(QUICK)
            assert identity_of(path) == before


async def test_the_core_checks_what_is_on_the_disk(
    mail: HookedMail, door: RemoteMail, messages: list[Message], path: Path, autojump_clock: MockClock
) -> None:
    """A disk that alters the file tells nobody, and the core has read the pages before."""
    async with keeping(mail, autojump_clock):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sound = await mail.search_texts(messages)
        with path.open("rb"):
            zero_pages(path)
            before = identity_of(path)
            assert await mail.search_texts(messages) == sound
            assert await door.search_texts(messages) == ({}, 3)
            await trio.sleep(QUICK)
            assert identity_of(path) != before
        assert await door.search_texts(messages) == sound


async def test_a_door_of_another_version_reads_bodies_and_the_core_goes_on(
    mail: HookedMail,
    door: RemoteMail,
    messages: list[Message],
    path: Path,
    autojump_clock: MockClock,
    *,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with keeping(mail, autojump_clock, replace(SEARCH_TEXTS, version=SEARCH_TEXTS.version + 1)):
        before = identity_of(path)
        assert await door.search_texts(messages) == ({}, 3)
        await trio.sleep(QUICK)
        assert identity_of(path) == before
        assert len((await mail.search_texts(messages)).texts) == 3
    assert not caplog.records


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_door_that_searches_no_more_closes_a_deleted_file(
    mail: HookedMail, door: RemoteMail, messages: list[Message], path: Path, autojump_clock: MockClock
) -> None:
    async with keeping(mail, autojump_clock):
        await door.search_texts(messages)
        mail.search_texts_task.begin_anew()
        await trio.sleep(QUICK + 2 * module.LOOK_EVERY_S)
        assert not open_files(f"{path} (deleted)")
        assert len((await door.search_texts(messages)).texts) == 3
