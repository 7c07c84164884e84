"""Announcements while bodies are at a peer that is away: the client's next command does not wait for them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

from replicator.errors import ContentUnavailableError
from replicator.imap.handlers.searches.updates import READING_S
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import BodyReader, Folder, MailStore, NewMessage
from replicator.mail.view import Message
from replicator.mime.skeleton import Skeleton
from tests.imap.client import connected
from tests.one_node import HookedMail

PEERS_PATIENCE_S = 25.0
LARGE = (
    b"Subject: large\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nHello\r\n--b\r\n"
    b"Content-Type: image/png\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    + (b64encode(b"x" * 57) + b"\r\n") * 8000
    + b"--b--\r\n"
)
HERE, AWAY = b"Subject: here\r\n\r\nHello", b"Subject: away\r\n\r\nHello again"


class _Peer:
    """Settings in which bodies of some size are missing and waited for, and bodies are read one by one."""

    def __init__(self, mail: MailStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers_after_s = PEERS_PATIENCE_S
        self.has_it = False
        self._read = mail.read_body
        monkeypatch.setattr(mail, "read_body", self.read_body)
        for name in ("read_bodies", "outlines"):
            monkeypatch.setattr(mail, name, self._nothing)

    async def read_body(self, message: Message) -> BodyReader:
        if message.size_bytes == len(AWAY):
            await trio.sleep(self.answers_after_s)
            if not self.has_it:
                raise ContentUnavailableError("the body is at no reachable node")
        return await self._read(message)

    @staticmethod
    async def _nothing(_messages: Iterable[Message], _more: int) -> Mapping[bytes, BodyReader]:
        return {}


@pytest.fixture
def peer(served: ImapServices, monkeypatch: pytest.MonkeyPatch) -> _Peer:
    return _Peer(served.mail, monkeypatch)


async def _arrive(mail: HookedMail, *bodies: bytes) -> Folder:
    inbox = await mail.folder("alice", "INBOX")
    await mail.save_all(inbox, [NewMessage(body) for body in bodies])
    return inbox


NOTIFY = "NOTIFY SET (selected (MessageNew (UID BODY.PEEK[TEXT]) MessageExpunge))"


async def test_missing_bodies_delay_the_next_command_once(
    autojump_clock: MockClock, served: ImapServices, mail: HookedMail, peer: _Peer
) -> None:
    """The command waits for the announcement that goes on, and is answered after another one: mail arrives in steps."""
    assert peer.answers_after_s > 2 * READING_S
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.run(NOTIFY)
        await _arrive(mail, HERE, *[AWAY] * 5)
        began = autojump_clock.current_time()
        await client.send("a NOOP\r\n")
        told = await client.until("a")
        assert autojump_clock.current_time() - began <= 2 * READING_S
        assert "* 6 EXISTS" in told
        assert [line for line in told if "FETCH" in line] == ['* 1 FETCH (UID 1 BODY[TEXT] "Hello")']
        assert told[-1].startswith("a OK ")


async def test_the_time_is_that_of_one_announcement(
    autojump_clock: MockClock, served: ImapServices, mail: HookedMail, peer: _Peer
) -> None:
    """A later one has its own, and so has FETCH, which waits as long as the store does."""
    assert autojump_clock.autojump_threshold == 0
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.run(NOTIFY)
        await _arrive(mail, AWAY)
        assert await client.line() == "* 1 EXISTS"
        assert (await client.run("NOOP"))[-1].startswith("t OK ")
        peer.answers_after_s, peer.has_it = READING_S * 0.9, True
        await _arrive(mail, AWAY)
        told = [await client.line() for _ in range(3)]
        assert '* 2 FETCH (UID 2 BODY[TEXT] "Hello again")' in told
        peer.answers_after_s = READING_S * 1.5
        assert (await client.run("UID FETCH 1 BODY.PEEK[TEXT]"))[0] == '* 1 FETCH (UID 1 BODY[TEXT] "Hello again")'


@dataclass(frozen=True)
class _StallingBody:
    """A body whose large attachment is at a peer that sends its beginning, whenever it is asked, and then nothing."""

    body: BodyReader

    @property
    def skeleton(self) -> Skeleton:
        return self.body.skeleton

    async def check(self, start: int, end: int) -> None:
        await self.body.check(start, end)

    async def read(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        async with aclosing(self.body.read(start, end)) as octets:
            async for some in octets:
                yield some
                if end - start > len(some):
                    await trio.sleep(PEERS_PATIENCE_S)
                    raise ContentUnavailableError("the rest of this attachment is at no reachable node")


@pytest.mark.parametrize("item", ["BODY.PEEK[2]", "BODY.PEEK[]", "BINARY.PEEK[2]"])
async def test_attachment_that_stalls_while_it_is_read_is_left_out(
    autojump_clock: MockClock, served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, item: str
) -> None:
    read_body, is_here = served.mail.read_body, False

    async def read(message: Message) -> BodyReader:
        body = await read_body(message)
        return body if is_here else _StallingBody(body)

    monkeypatch.setattr(served.mail, "read_body", read)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.run(f"NOTIFY SET (selected (MessageNew (UID {item}) MessageExpunge))")
        for told in (0, 1):
            await _arrive(mail, LARGE)
            began = autojump_clock.current_time()
            await client.send("a NOOP\r\n")
            octets = await client.octets("a")
            assert autojump_clock.current_time() - began <= 2 * READING_S
            assert b"* %d EXISTS" % (told + 1) in octets
            assert octets.count(b" FETCH (UID ") == told
            is_here = True


@pytest.mark.parametrize("search", ["SEARCH RETURN (UPDATE) TEXT Hello", "SORT RETURN (UPDATE) (SUBJECT) UTF-8 ALL"])
async def test_search_whose_bodies_do_not_come_in_time_is_kept_up_to_date_no_longer(
    autojump_clock: MockClock, served: ImapServices, mail: HookedMail, peer: _Peer, search: str
) -> None:
    assert peer.answers_after_s > READING_S
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.run(search, "s")
        await _arrive(mail, HERE, *[AWAY] * 5)
        began = autojump_clock.current_time()
        told = await client.run("NOOP")
        assert autojump_clock.current_time() - began <= READING_S
        assert told[0] == "* 6 EXISTS"
        assert any(line.startswith('* NO [NOUPDATE "s"] ') for line in told)
        assert not any("ADDTO" in line for line in told)
        assert told[-1].startswith("t OK ")
