"""PREVIEW (RFC 8970): told by outlines, or else by the body; and, if it may be late, not at all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.units import KIB
from replicator.imap.rendering.outline import VERSION
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import NewMessage
from replicator.mime.skeleton import BEGIN_BYTES
from replicator.store.bodies.body_reader import LargeBody
from tests.imap.bodies.outlining import answers, counted, outlining
from tests.imap.client import connected
from tests.imap_data.hard_mails import file, parts, text
from tests.one_node import HookedMail

STYLE = b"<style>" + b"p { color: black }\r\n" * 4 * KIB + b"</style>"
LATE_TEXT = parts("mixed", file(), text(STYLE + b"<p>Hello</p>" + b"<br>" * 20 * KIB, "html"))
"""A newsletter whose text is stored apart."""

MAILS = {
    b'"Hello"': text(b"Hello\r\n"),
    b'""': file(),
    b"{7}\r\nGr\xc3\xbc\xc3\x9fe": text("Grüße\r\n".encode(), "plain; charset=utf-8"),
}
"""Messages by their previews, as they are sent."""


@contextmanager
def counted_octets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Note how many octets of large bodies are read at a time."""
    found, read = list[int](), LargeBody.read

    async def note(body: LargeBody, start: int, end: int) -> AsyncGenerator[bytes, None]:
        found.append(end - start)
        async for octets in read(body, start, end):
            yield octets

    with monkeypatch.context() as patched:
        patched.setattr(LargeBody, "read", note)
        yield found


async def save(mail: HookedMail, *bodies: bytes) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for body in bodies:
        await mail.save(inbox, NewMessage(body, frozenset({"\\Seen"})))


def fetched(*values: bytes, item: bytes = b"PREVIEW") -> bytes:
    return b"".join(b"* %d FETCH (%b %b)\r\n" % (number, item, value) for number, value in enumerate(values, 1))


async def test_previews_come_from_bodies_or_outlines(
    mail: HookedMail, served: ImapServices, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    await save(mail, *MAILS.values())
    command = ["FETCH 1:* PREVIEW", "FETCH 1:* (PREVIEW (LAZY))"]
    nothing = fetched(*[b"NIL"] * len(MAILS))
    with counted(served.mail, monkeypatch) as read:
        assert await answers(served, command) == [fetched(*MAILS), nothing]
        assert len(read) == len(MAILS), "a lazy preview is no reason to read a body"
    async with outlining(mail, autojump_clock):
        with counted(served.mail, monkeypatch) as read:
            assert await answers(served, command) == [fetched(*MAILS)] * 2
            assert read == []


async def test_lazy_preview_is_told_where_the_body_is_read_anyway(mail: HookedMail, served: ImapServices) -> None:
    await save(mail, *MAILS.values(), LATE_TEXT)
    (said,) = await answers(served, ["FETCH 1:* (BODY.PEEK[1]<0.1> PREVIEW (LAZY) PREVIEW (LAZY))"])
    assert [value in said for value in MAILS] == [True] * len(MAILS)
    assert said.count(b"PREVIEW") == len(MAILS) + 1
    assert said.count(b"PREVIEW NIL") == 1, "the text that is stored apart is not read"


async def test_previews_stand_beside_other_items(
    mail: HookedMail, served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    await save(mail, MAILS[b'"Hello"'])
    await answers(served, [])  # from now on, nothing is \Recent
    commands = ["FETCH 1 (UID PREVIEW FLAGS)", "UID FETCH 1 (PREVIEW (LAZY) MODSEQ)", "FETCH 1 (PREVIEW BODY[1]<0.1>)"]
    expected = [
        b'* 1 FETCH (UID 1 PREVIEW "Hello" FLAGS (\\Seen))\r\n',
        b'* 1 FETCH (UID 1 PREVIEW "Hello" MODSEQ (1))\r\n',
        b'* 1 FETCH (PREVIEW "Hello" BODY[1]<0> "H")\r\n',
    ]
    lazily = [expected[0], expected[1].replace(b'"Hello"', b"NIL"), expected[2]]
    assert [said.replace(b"(2)", b"(1)") for said in await answers(served, commands)] == lazily
    async with outlining(mail, autojump_clock):
        assert [said.replace(b"(2)", b"(1)") for said in await answers(served, commands)] == expected


async def test_previews_do_not_set_seen(mail: HookedMail, served: ImapServices) -> None:
    inbox = await mail.folder("alice", "INBOX")
    await mail.save(inbox, NewMessage(MAILS[b'"Hello"']))
    await answers(served, ["FETCH 1 PREVIEW", "FETCH 1 (PREVIEW (LAZY))"])
    assert not (await mail.open_mailbox(inbox)).messages[1].flags


async def test_only_the_beginning_of_a_text_is_read(
    mail: HookedMail, served: ImapServices, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    await save(mail, LATE_TEXT)
    commands = ["FETCH 1 PREVIEW"]
    with counted_octets(monkeypatch) as octets:
        assert await answers(served, commands) == [fetched(b'"Hello"')]
        assert octets == [BEGIN_BYTES]
    async with outlining(mail, autojump_clock):
        with counted_octets(monkeypatch) as octets:
            assert await answers(served, [*commands, "FETCH 1 (PREVIEW (LAZY))"]) == [fetched(b'"Hello"')] * 2
            assert octets == []


async def test_text_without_words_that_is_stored_apart_makes_an_empty_preview(
    mail: HookedMail, served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    await save(mail, parts("mixed", text(STYLE, "html"), text(STYLE + b"<p>Hello", "html")))
    assert await answers(served, ["FETCH 1 PREVIEW"]) == [fetched(b'""')]
    async with outlining(mail, autojump_clock):
        assert await answers(served, ["FETCH 1 PREVIEW", "FETCH 1 (PREVIEW (LAZY))"]) == [fetched(b'""')] * 2


async def test_text_that_cannot_be_read_leaves_the_rest_of_the_outline(
    mail: HookedMail,
    served: ImapServices,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    await save(mail, LATE_TEXT)
    (message,) = (await mail.open_mailbox(await mail.folder("alice", "INBOX"))).messages.values()
    for file_of_attachment in filter(Path.is_file, (tmp_path / "attachments").rglob("*")):
        file_of_attachment.write_bytes(b"")
    async with outlining(mail, autojump_clock):
        assert await mail.outlines([message], VERSION)
        with counted(served.mail, monkeypatch) as read:
            said = await answers(served, ["FETCH 1 (PREVIEW (LAZY))", "FETCH 1 ENVELOPE"])
            assert (said[0], read) == (fetched(b"NIL"), [])
        async with connected(served) as client:
            await client.log_in("alice", "INBOX")
            assert "t NO [UNAVAILABLE]" in (await client.run("FETCH 1 PREVIEW"))[-1]


async def test_text_that_is_not_read_in_time_delays_outlines_for_a_while_only(
    mail: HookedMail, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    await save(mail, LATE_TEXT, MAILS[b'"Hello"'])
    messages = (await mail.open_mailbox(await mail.folder("alice", "INBOX"))).messages.values()

    async def hang(_body: LargeBody, _start: int, _end: int) -> AsyncGenerator[bytes, None]:
        await trio.sleep_forever()
        yield b""

    monkeypatch.setattr(LargeBody, "read", hang)
    async with outlining(mail, autojump_clock):
        assert len(await mail.outlines(messages, VERSION)) == 2


async def test_body_that_nobody_has_is_no_reason_to_refuse_a_lazy_preview(
    mail: HookedMail, served: ImapServices
) -> None:
    await save(mail, MAILS[b'"Hello"'])
    (message,) = (await mail.open_mailbox(await mail.folder("alice", "INBOX"))).messages.values()
    await mail.lose_body(message)
    assert await answers(served, ["FETCH 1 (PREVIEW (LAZY))"]) == [fetched(b"NIL")]


async def test_whole_body_is_not_read_for_a_lazy_preview(
    mail: HookedMail, served: ImapServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = parts("mixed", *[text(b"Hello\r\n" * KIB) for _ in range(200)])
    await save(mail, many)
    (message,) = (await mail.open_mailbox(await mail.folder("alice", "INBOX"))).messages.values()
    assert (await mail.read_body(message)).skeleton.header_only
    with counted_octets(monkeypatch) as octets:
        (said,) = await answers(served, ["FETCH 1 (BODY.PEEK[HEADER.FIELDS (Subject)] PREVIEW (LAZY))"])
        assert b"PREVIEW NIL" in said
        assert octets == []
        (said,) = await answers(served, ["FETCH 1 PREVIEW"])
        assert said.startswith(b'* 1 FETCH (PREVIEW "Hello Hello ')
        assert octets == [len(many)]
