"""THREAD (RFC 5256) over real sessions of one node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.values import UidSet
from replicator.config import LimitsConfig
from replicator.imap.handlers.searches import thread
from replicator.imap.matching.message_reader import Parsing
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import NewMessage
from tests.imap.client import connected, fill
from tests.imap.counted_threads import CountedThreads
from tests.one_node import HookedMail

LUNCH = "Subject: Lunch\r\nMessage-ID: <1@x>\r\nDate: 1 Jan 2024 10:00:00 +0000\r\n\r\n"
REPLY = 'Subject: Re: Lunch\r\nMessage-ID: <"2"@x>\r\nDate: 5 Jan 2024 10:00:00 +0000\r\nIn-Reply-To: you <1@x>\r\n\r\n'
LATER = "Subject: [x] Re: lunch\r\nMessage-ID: <3@x>\r\nDate: 3 Jan 2024 10:00\r\nReferences: <1@x>\r\n <2@x>\r\n\r\n"
OTHER = "Subject: Dinner\r\nMessage-ID: <4@x>\r\nDate: 2 Jan 2024 10:00:00 +0000\r\n\r\n"
LOST = "Subject: RE: Lunch (fwd)\r\nMessage-ID: <5@x>\r\nDate: 4 Jan 2024 10:00:00 +0000\r\nReferences: <0@x>\r\n\r\n"
PLAIN = "\r\nno header\r\n"


async def filled(mail: HookedMail) -> None:
    for message in (LUNCH, REPLY, LATER, OTHER, LOST, PLAIN):
        await fill(mail, 1, message.encode())


@pytest.mark.parametrize(
    ("command", "threads"),
    [
        ("THREAD REFERENCES UTF-8 ALL", "(1 (5)(2 3))(4)(6)"),
        (
            "THREAD REFS UTF-8 ALL",
            "(4)(5)(1 2 3)(6)",
        ),  # by the latest message; 6 has come now
        ("THREAD ORDEREDSUBJECT UTF-8 ALL", "(1 (3)(5)(2))(4)(6)"),
        ("thread references us-ascii NOT 2", "(1 (3)(5))(4)(6)"),
        ("THREAD REFS UTF-8 2:3", "(2 3)"),
        ("THREAD REFERENCES UTF-8 5", "(5)"),
        ("THREAD REFERENCES UTF-8 NOT ALL", ""),
    ],
)
async def test_messages_are_put_into_threads(
    served: ImapServices, mail: HookedMail, command: str, threads: str
) -> None:
    await filled(mail)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run(command) == [f"* THREAD {threads}".rstrip(), "t OK Threaded"]


async def test_threads_name_messages_by_number_or_uid(served: ImapServices, mail: HookedMail) -> None:
    await filled(mail)
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await mail.expunge(view, UidSet.of([1]))
        await client.run("NOOP")
        assert (await client.run("THREAD REFS UTF-8 ALL"))[0] == "* THREAD (3)(4)(1 2)(5)"
        assert (await client.run("UID THREAD REFS UTF-8 ALL"))[0] == "* THREAD (4)(5)(2 3)(6)"
        await client.run("SEARCH RETURN (SAVE) UID 3:4")
        assert (await client.run("UID THREAD ORDEREDSUBJECT UTF-8 $"))[0] == "* THREAD (4)(3)"
        assert (await client.run("THREAD REFS KOI8-R ALL"))[0].startswith("t NO [BADCHARSET (US-ASCII UTF-8)] ")


async def test_message_without_a_readable_header_is_a_thread_of_its_own(served: ImapServices, mail: HookedMail) -> None:
    await filled(mail)
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await mail.lose_body(view.messages[2])
        told = await client.run("THREAD REFERENCES UTF-8 1:3")
        assert told == ["* THREAD (1 3)(2)", "t OK Threaded, without the headers of 1 messages"]


@pytest.mark.parametrize(
    ("command", "in_threads"),
    [
        ("ORDEREDSUBJECT UTF-8 1:5", 0),
        ("ORDEREDSUBJECT UTF-8 1:6", 1),
        ("REFERENCES UTF-8 1:2,4,6", 0),  # one of them refers to another message
        ("REFERENCES UTF-8 1:3,4", 1),  # one to two more
    ],
)
async def test_many_messages_or_references_are_threaded_in_a_thread(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, command: str, in_threads: int
) -> None:
    """To look for circles may take steps as many as the square of the references, however few the messages."""
    threads = CountedThreads()
    monkeypatch.setattr(thread, "THREADED_HERE", 5)
    await filled(mail)
    async with connected(replace(served, parsing=Parsing(run_in_thread=threads))) as client:
        await client.log_in("alice", "INBOX")
        assert (await client.run(f"THREAD {command}"))[-1] == "t OK Threaded"
    assert threads.count == in_threads


@pytest.mark.parametrize(
    ("command", "first", "again"),
    [
        ("ORDEREDSUBJECT UTF-8 1:5", 0, 0),
        ("REFERENCES UTF-8 1:5", 1, 0),  # what they refer to is noted
        ("REFERENCES UTF-8 1:6", 4, 2),  # the order is looked for, told and, the first time, kept, too
    ],
)
async def test_many_messages_are_prepared_and_told_in_threads(
    served: ImapServices, mail: HookedMail, command: str, first: int, again: int
) -> None:
    threads = CountedThreads()
    await filled(mail)
    async with connected(replace(served, parsing=Parsing(run_in_thread=threads, many_messages=5))) as client:
        await client.log_in("alice", "INBOX")
        for in_threads in (first, again):
            threads.count = 0
            assert (await client.run(f"THREAD {command}"))[-1] == "t OK Threaded"
            assert threads.count == in_threads


async def test_thread_beyond_a_limit_is_refused(served: ImapServices, mail: HookedMail) -> None:
    await filled(mail)
    await mail.save(
        await mail.folder("alice", "INBOX"),
        NewMessage(b"References: " + b"\r\n ".join(b"<%d@x>" % number for number in range(200)) + b"\r\n\r\n"),
    )
    limits = LimitsConfig(imap_sort_messages=6, imap_search_work=1000)
    async with connected(replace(served, limits=limits)) as client:
        await client.log_in("alice", "INBOX")
        [refused] = await client.run("THREAD REFS UTF-8 ALL")
        assert refused.startswith("t NO [LIMIT] A SORT or THREAD may have 6 messages, not 7;")
        [refused] = await client.run("THREAD REFS UTF-8 7")
        assert refused.startswith("t NO [LIMIT] The THREAD takes more than 1000 steps;")
        assert (await client.run("THREAD ORDEREDSUBJECT UTF-8 7"))[0] == "* THREAD (7)"
