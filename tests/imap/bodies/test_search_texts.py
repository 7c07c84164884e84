"""SEARCH, SORT and THREAD by search texts: the same answers as from the bodies, without reading those."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
import trio
from trio.testing import MockClock

from protocol.units import KIB, MIB
from replicator.errors import DiskFullError
from replicator.imap.rendering.search_text import SEARCH_TEXTS
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import BodyReader, NewMessage, SearchTextMaker
from replicator.mail.view import Message
from replicator.mime.skeleton import Skeleton
from replicator.replication import timing
from replicator.replication.bodies.upkeep.search_texts import BODIES_AT_ONCE
from replicator.runtime.files.disk_room import Shortage
from replicator.status import SearchTextStatus
from replicator.store.search_texts import reader as reader_module
from replicator.store.search_texts import writer as writer_module
from replicator.store.search_texts.reader import SearchTextReader
from replicator.store.search_texts.writer import SearchTextWriter
from replicator.workers.door.mail import RemoteMail
from tests.effort import first
from tests.imap.client import connected
from tests.imap_data.hard_mails import HARD_MAILS
from tests.one_node import HookedMail, one_node
from tests.store.damaging import ZEROS, damage, overwrite

P = ParamSpec("P")
T = TypeVar("T")

KEYS = [b"e", b"gr", b"hello", "Ü".encode(), b'"', b"NEAR(", b"a*", b"=?", b"", b"ZZZ"]
COMMANDS = [
    "SEARCH NOT BODY e",
    "SEARCH OR SUBJECT gr BODY hello",
    "UID SEARCH NOT (SUBJECT a TEXT o)",
    "SEARCH RETURN (PARTIAL 1:3 COUNT) BODY e",
    "SEARCH RETURN (MIN MAX) TEXT o",
    "UID SORT (SUBJECT) UTF-8 BODY e",
    "THREAD REFERENCES UTF-8 TEXT o",
]
WRITING = ["__init__", "close", "write", "hashes", "remove", "size_bytes"]
READING = ["texts", "close", "close_if_deleted"]
QUICK = timing.SEARCH_TEXTS_EVERY_S / 2


@dataclass(frozen=True)
class Rig:
    """A node that is told in the test when to keep search texts."""

    mail: HookedMail
    served: ImapServices
    directory: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def file(self) -> Path:
        return self.directory / "search.db"

    @property
    def status(self) -> SearchTextStatus | None:
        return self.mail.search_texts_task.status

    async def messages(self) -> list[Message]:
        inbox = await self.mail.folder("alice", "INBOX")
        return [*(await self.mail.open_mailbox(inbox)).messages.values()]


@pytest.fixture
def rig(mail: HookedMail, served: ImapServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(mail, served, tmp_path, monkeypatch)


@contextmanager
def counted(rig: Rig) -> Iterator[list[int]]:
    """Note the UIDs of messages whose body is read."""
    read, read_body = list[int](), rig.served.mail.read_body

    async def note(message: Message) -> BodyReader:
        read.append(message.uid)
        return await read_body(message)

    with rig.monkeypatch.context() as patched:
        patched.setattr(rig.served.mail, "read_body", note)
        yield read


@asynccontextmanager
async def keeping(rig: Rig, clock: MockClock, maker: SearchTextMaker | None = SEARCH_TEXTS) -> AsyncIterator[None]:
    """Keep search texts of the bodies that are here, and of those that come in the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.mail.keep_search_texts, maker)
        await trio.sleep_until(clock.current_time() + QUICK)
        yield
        nursery.cancel_scope.cancel()


async def save(mail: HookedMail, *bodies: bytes) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for body in bodies:
        await mail.save(inbox, NewMessage(body))


async def answers(served: ImapServices, commands: list[str]) -> list[bytes]:
    found = []
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for command in commands:
            await client.send(f"t {command}\r\n")
            found.append(await client.octets())
        for key in KEYS if commands is COMMANDS else ():
            for where in (b"BODY", b"TEXT"):
                await client.send(b"t SEARCH CHARSET UTF-8 %b {%d+}\r\n%b\r\n" % (where, len(key), key))
                found.append(await client.octets())
    return found


async def found_by_text(rig: Rig) -> list[int]:
    """Search for `x1`, which each body has; return the messages that were read for it."""
    with counted(rig) as read:
        numbers = b" ".join(b"%d" % number for number in range(1, len(await rig.messages()) + 1))
        assert (await answers(rig.served, ["SEARCH BODY x1"]))[0].startswith(b"* SEARCH %b\r\n" % numbers)
    return read


async def test_answers_by_search_texts_are_those_by_bodies(rig: Rig, autojump_clock: MockClock) -> None:
    await save(rig.mail, *HARD_MAILS.values())
    by_bodies = await answers(rig.served, COMMANDS)
    async with keeping(rig, autojump_clock):
        with counted(rig) as read:
            assert await answers(rig.served, COMMANDS) == by_bodies
    searched = len(COMMANDS) + 2 * len(KEYS)
    assert len(read) < searched * len(HARD_MAILS) / 10 + 3 * len(HARD_MAILS)  # there are no outlines for these keys
    status = rig.status
    assert status is None, "the file is closed"


async def test_updates_of_searches_come_by_search_texts(rig: Rig, autojump_clock: MockClock) -> None:
    async with keeping(rig, autojump_clock), connected(rig.served) as client:
        await client.log_in("alice", "INBOX")
        await client.send("t SEARCH RETURN (UPDATE) BODY x1\r\n")
        await client.octets()
        await save(rig.mail, b"\r\nx1", b"\r\nx2")
        await trio.sleep(QUICK)
        with counted(rig) as read:
            await client.send("t NOOP\r\n")
            assert b'* ESEARCH (TAG "t") ADDTO (0 1)\r\n' in await client.octets()
        assert read == []


async def test_new_mail_is_read_until_it_has_a_search_text(rig: Rig, autojump_clock: MockClock) -> None:
    async with keeping(rig, autojump_clock):
        await save(rig.mail, *(b"\r\nx1 %d" % number for number in range(3 * BODIES_AT_ONCE)))
        assert len(await found_by_text(rig)) == 3 * BODIES_AT_ONCE
        await trio.sleep(QUICK)
        assert await found_by_text(rig) == []
        status = rig.status
        assert status is not None
        assert (status.bodies, status.waiting) == (3 * BODIES_AT_ONCE, 0)
        assert status.size_bytes > 3 * BODIES_AT_ONCE


async def test_only_as_many_texts_as_fit_in_memory_are_searched_at_once(rig: Rig, autojump_clock: MockClock) -> None:
    await save(rig.mail, *(b"\r\nx1 %d" % number for number in range(40)))
    rig.monkeypatch.setattr(reader_module, "SLICE_BYTES", 100)
    async with keeping(rig, autojump_clock):
        assert await found_by_text(rig) == []


async def test_search_texts_of_bodies_that_have_left_leave(rig: Rig, autojump_clock: MockClock) -> None:
    await save(rig.mail, b"\r\nx1 a", b"\r\nx1 b")
    messages = await rig.messages()
    async with keeping(rig, autojump_clock):
        assert len((await rig.mail.search_texts(messages)).texts) == 2
        await rig.mail.lose_body(messages[1])  # and its id is that of the next body
        await save(rig.mail, b"\r\nx1 c")
        await trio.sleep(timing.SEARCH_TEXTS_COMPARE_S + 2 * timing.SEARCH_TEXTS_EVERY_S)
        messages = await rig.messages()
        texts = (await rig.mail.search_texts(messages)).texts
        assert [message.content_hash in texts for message in messages] == [True, False, True]


def zero_all(path: Path) -> None:
    for page in range(1, path.stat().st_size // len(ZEROS) + 1):
        overwrite(path, page)


def mix_up(path: Path) -> None:
    damage(path, "UPDATE search_text SET packed = (SELECT packed FROM search_text ORDER BY id DESC LIMIT 1)")


def change_form(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE search_text")


@pytest.mark.parametrize("harm", [mix_up, change_form])
async def test_damage_while_the_node_runs_heals(
    rig: Rig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], object]
) -> None:
    await save(rig.mail, b"\r\nx1 a", b"\r\nx1 b", b"\r\nx1 c")
    async with keeping(rig, autojump_clock):
        harm(rig.file)
        assert len(await found_by_text(rig)) == 3
        await trio.sleep(QUICK)
        assert await found_by_text(rig) == []
    assert [record.getMessage().endswith("search texts are made anew") for record in caplog.records] == [True]


async def test_damage_that_several_searches_meet_is_told_once(
    rig: Rig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    await save(rig.mail, b"\r\nx1 a", b"\r\nx1 b")
    messages = await rig.messages()
    async with keeping(rig, autojump_clock):
        mix_up(rig.file)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(rig.mail.search_texts, messages)
        await trio.sleep(QUICK)
        assert await found_by_text(rig) == []
    assert [record.getMessage().endswith("search texts are made anew") for record in caplog.records] == [True]


@pytest.mark.parametrize("wait", ["a message", "an hour"])
@pytest.mark.parametrize("replaced", first(1, [True, False]))
async def test_file_deleted_beneath_the_node_is_made_anew(
    rig: Rig, autojump_clock: MockClock, *, wait: str, replaced: bool
) -> None:
    await save(rig.mail, b"\r\nx1 a")
    async with keeping(rig, autojump_clock):
        rig.file.unlink()
        if replaced:
            rig.file.write_bytes(b"another file")
        if wait == "a message":
            await save(rig.mail, b"\r\nx1 b")
            await trio.sleep(QUICK)
        else:
            await trio.sleep(timing.SEARCH_TEXTS_COMPARE_S + QUICK)
        assert await found_by_text(rig) == []
        with closing(sqlite3.connect(rig.file)) as found:
            [(rows,)] = found.execute("SELECT COUNT(*) FROM search_text")
        assert rows == (2 if wait == "a message" else 1)


@pytest.mark.parametrize(
    "harm", [zero_all, mix_up, change_form, Path.unlink, lambda path: path.write_bytes(b"x" * 9999)]
)
async def test_damage_while_the_node_is_off_heals(
    rig: Rig, autojump_clock: MockClock, harm: Callable[[Path], object]
) -> None:
    await save(rig.mail, b"\r\nx1 a", b"\r\nx1 b", b"\r\nx1 c")
    async with keeping(rig, autojump_clock):
        pass
    harm(rig.file)
    async with keeping(rig, autojump_clock):
        await found_by_text(rig)
        await trio.sleep(QUICK)
        assert await found_by_text(rig) == []


async def test_search_texts_are_kept_from_one_run_to_the_next(rig: Rig, autojump_clock: MockClock) -> None:
    made = list[bytes]()

    def make(skeleton: Skeleton) -> bytes:
        made.append(skeleton.raw)
        return SEARCH_TEXTS.make(skeleton)

    maker = replace(SEARCH_TEXTS, make=make)
    await save(rig.mail, b"\r\na", b"\r\nb")
    for expected in ([b"\r\na", b"\r\nb"], [b"\r\nc"], []):
        made.clear()
        async with keeping(rig, autojump_clock, maker):
            assert made == expected
        await save(rig.mail, b"\r\nc")


async def test_search_texts_of_another_version_are_made_anew(rig: Rig, autojump_clock: MockClock) -> None:
    await save(rig.mail, b"\r\nx1 a", b"\r\nx1 b")
    other = replace(SEARCH_TEXTS, version=99, make=lambda _: SEARCH_TEXTS.make(Skeleton(b"\r\nother")))
    found = b"* SEARCH\r\n" if rig.served.mail is rig.mail else b"* SEARCH 1 2\r\n"  # a door apart is of this version
    async with keeping(rig, autojump_clock, other):
        assert found in (await answers(rig.served, ["SEARCH BODY x1"]))[0]
    async with keeping(rig, autojump_clock):
        assert await found_by_text(rig) == []


async def test_search_texts_of_another_node_do_no_harm(rig: Rig, autojump_clock: MockClock) -> None:
    (rig.directory / "other").mkdir()
    async with one_node(rig.directory / "other") as other:
        await save(other, b"\r\nx2", b"\r\nx1 b", *(b"\r\n%d" % number for number in range(50)))
        async with keeping(replace(rig, mail=other), autojump_clock):
            pass
    (rig.directory / "other" / "search.db").rename(rig.file)
    await save(rig.mail, b"\r\nx1 a", b"\r\nx1 b", b"\r\nx1 c")
    async with keeping(rig, autojump_clock):
        assert await found_by_text(rig) == []
        status = rig.status
        assert status is not None
        assert status.bodies == 3
    with closing(sqlite3.connect(rig.file)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM search_text").fetchone() == (3,)


async def test_node_that_keeps_none_deletes_them(rig: Rig, autojump_clock: MockClock) -> None:
    await save(rig.mail, b"\r\nx1 a")
    async with keeping(rig, autojump_clock):
        assert [*rig.directory.glob("search.db*")]
    async with keeping(rig, autojump_clock, None):
        assert not [*rig.directory.glob("search.db*")]
        assert await found_by_text(rig) == [1]
        assert rig.status is None


async def test_rebuild_makes_all_anew(rig: Rig, autojump_clock: MockClock) -> None:
    await save(rig.mail, b"\r\nx1 a", b"\r\nx1 b")
    async with keeping(rig, autojump_clock):
        before = rig.file.stat().st_ino
        keep_inode = rig.file.open()
        rig.mail.search_texts_task.begin_anew()
        await trio.sleep(QUICK)
        keep_inode.close()
        assert rig.file.stat().st_ino != before
        assert await found_by_text(rig) == []


async def test_full_disk_delays_search_texts(
    rig: Rig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    await save(rig.mail, b"\r\nx1 a")
    with rig.monkeypatch.context() as patched:
        patched.setattr(writer_module, "shortage", lambda *_: Shortage(1, 2, 3))
        async with keeping(rig, autojump_clock):
            assert await found_by_text(rig) == [1]
            patched.undo()
            await trio.sleep(2 * timing.SEARCH_TEXTS_EVERY_S)
            assert await found_by_text(rig) == []
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert "search texts leave" in caplog.text


async def test_file_that_fails_is_tried_again(rig: Rig, autojump_clock: MockClock) -> None:
    await save(rig.mail, b"\r\nx1 a")
    rig.file.mkdir()
    async with keeping(rig, autojump_clock):
        assert await found_by_text(rig) == [1]
        rig.file.rmdir()
        await trio.sleep(2 * timing.SEARCH_TEXTS_EVERY_S)
        assert await found_by_text(rig) == []


async def test_reading_that_fails_leaves_the_search_to_the_bodies(rig: Rig, autojump_clock: MockClock) -> None:
    await save(rig.mail, b"\r\nx1 a")

    def fail(*_: object) -> None:
        raise DiskFullError("the disk is full")

    async with keeping(rig, autojump_clock):
        with rig.monkeypatch.context() as patched:
            patched.setattr(SearchTextReader, "texts", fail)
            assert await found_by_text(rig) == [1]
        assert await found_by_text(rig) == []


def with_large_text(text: bytes, attachment_bytes: int) -> bytes:
    """A message whose text is in an attachment of the node's, and another large attachment."""
    part = b"\r\n--b\r\nContent-Type: %b\r\n\r\n%b"
    attached = random.Random(1).randbytes(attachment_bytes // 2).hex().encode()
    head = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
    return head + part % (b"text/plain", text) + part % (b"image/png", attached) + b"\r\n--b--\r\n"


async def test_text_in_attachments_is_in_search_texts(rig: Rig, autojump_clock: MockClock) -> None:
    large_text = b"x2 " * 100_000 + b"x1"
    await save(rig.mail, with_large_text(large_text, 200 * KIB), with_large_text(b"x1", 200 * KIB))
    async with keeping(rig, autojump_clock):
        assert await found_by_text(rig) == []


async def test_body_with_too_much_text_is_read(rig: Rig, autojump_clock: MockClock) -> None:
    too_large = with_large_text(b"x2 " * 100_000 + b"x1", 9 * MIB)
    too_much = with_large_text(b"x2 " * 500_000 + b"x1", 200 * KIB)
    await save(rig.mail, too_large, too_much, b"\r\nx1")
    async with keeping(rig, autojump_clock):
        assert await found_by_text(rig) == [1, 2]
        status = rig.status
        assert status is not None
        assert (status.bodies, status.waiting) == (3, 0)


async def test_damaged_body_is_left_out(rig: Rig, autojump_clock: MockClock) -> None:
    await save(rig.mail, b"\r\na", b"\r\nb", b"\r\nc")
    damage(rig.directory / "node.db", "UPDATE content SET body = x'00' WHERE id = 2")
    messages = await rig.messages()
    async with keeping(rig, autojump_clock):
        texts = (await rig.mail.search_texts(messages)).texts
        assert [message.content_hash in texts for message in messages] == [True, False, True]


async def test_search_texts_are_made_while_mail_comes_in_all_the_time(rig: Rig, autojump_clock: MockClock) -> None:
    """A turn of at most 64 bodies a second, so that deliveries come first."""
    inbox = await rig.mail.folder("alice", "INBOX")
    async with keeping(rig, autojump_clock):
        for number in range(50):
            await rig.mail.save(inbox, NewMessage(b"\r\n%d" % number))
            await trio.sleep(timing.SPARE_TIME_QUIET_S / 2)
        status = rig.status
        assert status is not None
        assert 25 < status.bodies < 50


async def test_deliveries_come_first(rig: Rig, autojump_clock: MockClock) -> None:
    """While the log grows, there is one turn a second for all upkeep."""
    await save(rig.mail, *(b"\r\n%d" % number for number in range(10 * BODIES_AT_ONCE)))
    inbox = await rig.mail.folder("alice", "INBOX")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.mail.keep_search_texts, SEARCH_TEXTS)
        for number in range(40):
            await rig.mail.save(inbox, NewMessage(b"\r\nnew %d" % number))
            await trio.sleep_until(autojump_clock.current_time() + timing.SPARE_TIME_QUIET_S / 2)
        status = rig.status
        assert status is not None
        assert BODIES_AT_ONCE <= status.bodies <= 4 * BODIES_AT_ONCE
        nursery.cancel_scope.cancel()


async def test_search_texts_are_made_and_read_in_threads(rig: Rig, autojump_clock: MockClock) -> None:
    """Nothing that takes time per body, and no access to the file, holds the event loop."""
    inside, seen = False, set[str]()

    async def in_thread(work: Callable[[], T]) -> T:
        nonlocal inside
        await trio.lowlevel.checkpoint()
        inside = True
        try:
            return work()
        finally:
            inside = False

    def noted(name: str, function: Callable[P, T]) -> Callable[P, T]:
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            assert inside, f"{name} holds the event loop"
            seen.add(name)
            return function(*args, **kwargs)

        return call

    for of, names in (SearchTextWriter, WRITING), (SearchTextReader, READING):
        for name in names:
            rig.monkeypatch.setattr(of, name, noted(name, getattr(of, name)))
    rig.monkeypatch.setattr(rig.mail.search_texts_task, "_run_in_thread", in_thread)
    if isinstance(rig.served.mail, RemoteMail):
        rig.monkeypatch.setattr(rig.served.mail._search_texts, "_run_in_thread", in_thread)
    lacks, make = noted("lacks_text", SEARCH_TEXTS.lacks_text), noted("make", SEARCH_TEXTS.make)
    await save(rig.mail, b"\r\nx1 a", with_large_text(b"x2 " * 100_000 + b"x1", 200 * KIB), b"\r\nx1 b")
    messages = await rig.messages()
    async with keeping(rig, autojump_clock, replace(SEARCH_TEXTS, lacks_text=lacks, make=make)):
        assert await found_by_text(rig) == []
        await rig.mail.lose_body(messages[2])
        await trio.sleep(timing.SEARCH_TEXTS_COMPARE_S + 2 * timing.SEARCH_TEXTS_EVERY_S)
    assert seen == {*WRITING, *READING, "lacks_text", "make"}
