"""FETCH, SEARCH, SORT and THREAD by outlines: the same answers as from the bodies, without reading those."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

import pytest
import trio
import trio.testing

from replicator.errors import DiskFullError
from replicator.imap.rendering.outline import OUTLINER, VERSION
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import NewMessage
from replicator.replication import timing
from replicator.replication.bodies.upkeep.outlines import BODIES_AT_ONCE
from tests.imap.bodies.outlining import answers, counted, outlining
from tests.imap_data.hard_mails import HARD_MAILS
from tests.one_node import HookedMail

LIST = (
    "FLAGS UID RFC822.SIZE ENVELOPE BODYSTRUCTURE PREVIEW THREADID"
    " BODY.PEEK[HEADER.FIELDS (Subject References X-Priority)]"
)
THREAD = "T" + blake2b(b"0@x", digest_size=16).hexdigest()
"""The conversation that a hard mail names by its In-Reply-To."""
SEARCHES = [
    "SUBJECT gr",
    "NOT SUBJECT gr",
    "FROM ann@",
    f"THREADID {THREAD}",
    f"NOT THREADID {THREAD}",
    "THREADID T1",
    "TO an CC b",
    'HEADER Content-Type ""',
    "SENTSINCE 1-Jan-2000",
    "SENTBEFORE 1-Jan-2030 NOT SENTON 1-Jan-2020",
]
QUICK = [
    f"FETCH 1:* ({LIST})",
    *(f"SEARCH {keys}" for keys in SEARCHES),
    "UID SORT (SUBJECT FROM REVERSE DATE TO CC) UTF-8 ALL",
    "THREAD REFERENCES UTF-8 ALL",
    "UID THREAD ORDEREDSUBJECT UTF-8 SUBJECT o",
]
COMMANDS = [
    "FETCH 1:* ENVELOPE",
    "UID FETCH 1:* (BODYSTRUCTURE)",
    "FETCH 1:* (PREVIEW BODY.PEEK[TEXT])",
    "FETCH 1:* (BODY.PEEK[HEADER.FIELDS (Received)])",
    "FETCH 1:* (ENVELOPE BODY.PEEK[HEADER])",
    "FETCH 1:* (UID BODY[HEADER.FIELDS (Subject)])",  # sets \Seen
    "SEARCH OR SUBJECT gr HEADER Received x",
    "SEARCH OR FROM ann BODY hello",
    "UID SEARCH NOT (SUBJECT a TEXT o)",
]


async def test_answers_by_outlines_are_those_by_bodies(
    mail: HookedMail, served: ImapServices, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for raw in HARD_MAILS.values():
        await mail.save(inbox, NewMessage(raw, frozenset({"\\Seen"})))
    await answers(served, [])  # from now on, nothing is \Recent
    by_bodies = await answers(served, [*QUICK, *COMMANDS])
    async with outlining(mail, autojump_clock):
        with counted(served.mail, monkeypatch) as read:
            by_outlines = await answers(served, QUICK)
            assert len(read) < len(QUICK) * len(HARD_MAILS) / 10
        by_outlines += await answers(served, COMMANDS)
    for one, other in zip(by_outlines, by_bodies, strict=True):
        assert sorted(one.split(b"* ")) == sorted(other.split(b"* "))


async def test_new_mail_is_read_until_it_has_an_outline(
    mail: HookedMail, served: ImapServices, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    inbox = await mail.folder("alice", "INBOX")
    command = ["FETCH 1:* (ENVELOPE)"]
    async with outlining(mail, autojump_clock):
        for number in range(3 * BODIES_AT_ONCE):
            await mail.save(inbox, NewMessage(b"Subject: %d\r\n\r\n" % number))
        with counted(served.mail, monkeypatch) as read:
            by_bodies = await answers(served, command)
            assert len(read) == 3 * BODIES_AT_ONCE
        await trio.sleep(timing.OUTLINES_EVERY_S / 2)
        with counted(served.mail, monkeypatch) as read:
            assert await answers(served, command) == by_bodies
            assert read == []


async def test_outlines_are_made_while_mail_comes_in_all_the_time(
    mail: HookedMail, autojump_clock: trio.testing.MockClock
) -> None:
    inbox = await mail.folder("alice", "INBOX")
    async with outlining(mail, autojump_clock):
        for number in range(50):
            await mail.save(inbox, NewMessage(b"Subject: %d\r\n\r\n" % number))
            await trio.sleep(timing.SPARE_TIME_QUIET_S / 2)
        messages = (await mail.open_mailbox(inbox)).messages.values()
        assert len(await mail.outlines(messages, VERSION)) > 25


async def test_full_disk_delays_outlines(
    mail: HookedMail, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    inbox = await mail.folder("alice", "INBOX")
    await mail.save(inbox, NewMessage(b"Subject: x\r\n\r\n"))
    messages = [*(await mail.open_mailbox(inbox)).messages.values()]

    async def full(_: object) -> None:
        raise DiskFullError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(mail.store, "write", full)
        async with outlining(mail, autojump_clock):
            assert not await mail.outlines(messages, VERSION)
            patched.undo()
            await trio.sleep(2 * timing.OUTLINES_EVERY_S)
            assert await mail.outlines(messages, VERSION)


async def test_outlines_of_an_earlier_version_are_made_anew(
    mail: HookedMail, autojump_clock: trio.testing.MockClock
) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for number in range(3):
        await mail.save(inbox, NewMessage(b"Subject: %d\r\n\r\n" % number))
    messages = [*(await mail.open_mailbox(inbox)).messages.values()]
    for version in (VERSION, VERSION + 1):
        async with outlining(mail, autojump_clock, replace(OUTLINER, version=version)):
            assert len(await mail.outlines(messages, version)) == 3
    assert await mail.outlines(messages, VERSION) == {}
