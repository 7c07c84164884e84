"""ESEARCH (RFC 4731), SEARCHRES (RFC 5182) and WITHIN (RFC 5032) over real sessions of one node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.values import UidSet
from replicator.imap.handlers.messages import named_messages
from replicator.imap.handlers.searches import results
from replicator.imap.matching.message_reader import Parsing
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import NewMessage
from tests.imap.client import connected, fill
from tests.imap.counted_threads import CountedThreads
from tests.one_node import HookedMail

NOON_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ("YOUNGER 60", "2 3"),
        ("OLDER 60", "1"),
        ("NOT YOUNGER 59", "1 2"),
        ("OLDER 59", "1 2"),
        ("OLDER 4000000000", ""),
    ],
)
async def test_within_compares_the_internal_date_with_the_time_of_the_search(
    served: ImapServices, mail: HookedMail, keys: str, found: str
) -> None:
    """RFC 5032 section 3; unlike BEFORE and SINCE, it counts seconds."""
    inbox = await mail.folder("alice", "INBOX")
    for age_s in (61, 60, 0):
        await mail.save(inbox, NewMessage(b"\r\n", received_ms=NOON_MS - 1000 * age_s))
    async with connected(replace(served, clock_ms=lambda: NOON_MS)) as client:
        await client.log_in("alice", "INBOX")
        assert (await client.run(f"SEARCH {keys}"))[0].split() == ["*", "SEARCH", *found.split()]


async def test_search_that_cannot_read_a_message_saves_nothing(served: ImapServices, mail: HookedMail) -> None:
    """A SEARCH with SAVE that ends with NO leaves an empty `$` (RFC 5182 section 2.1)."""
    inbox = await fill(mail, 1)
    await mail.save(inbox, NewMessage(b"Subject: lost\r\n\r\n"))
    view = await mail.open_mailbox(inbox)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run("SEARCH RETURN (SAVE) ALL") == ["t OK Searched"]
        await mail.lose_body(view.messages[2])
        told = await client.run("UID SEARCH RETURN (SAVE ALL) SUBJECT x")
        assert told[0] == '* ESEARCH (TAG "t") UID ALL 1'
        assert told[1].startswith("t NO [UNAVAILABLE] ")
        assert await client.run("SEARCH $") == ["* SEARCH", "t OK Searched"]


async def test_expunged_message_that_was_not_announced_is_in_the_saved_result_and_is_told_as_gone(
    served: ImapServices, mail: HookedMail
) -> None:
    """`$` names messages as their numbers do: RFC 2180 section 4.1.2 holds for both."""
    inbox = await fill(mail, 3)
    view = await served.mail.open_mailbox(inbox)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.run("SEARCH RETURN (SAVE) 1:2")
        await served.mail.expunge(view, UidSet.of([1]))
        told = await client.run("FETCH $ UID")
        assert told[0] == "* 2 FETCH (UID 2)"
        assert told[1].startswith("t OK [EXPUNGEISSUED] ")
        assert (await client.run("NOOP"))[0] == "* 1 EXPUNGE"
        assert await client.run("FETCH $ UID") == ["* 1 FETCH (UID 2)", "t OK Fetched"]


@pytest.mark.parametrize(
    ("command", "in_threads"),
    [
        ("SEARCH ALL", 1),  # the response
        ("SEARCH RETURN (ALL) ALL", 1),
        ("SEARCH RETURN (SAVE) ALL", 0),
        ("FETCH $ UID", 1),  # the numbers
        ("UID SEARCH RETURN (COUNT) $", 2),  # the set of UIDs, and the response
        ("UID EXPUNGE $", 1),
    ],
)
async def test_large_results_are_handled_in_a_thread(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, command: str, in_threads: int
) -> None:
    threads = CountedThreads()
    monkeypatch.setattr(named_messages, "MANY_RANGES", 10)
    monkeypatch.setattr(results, "MANY_RANGES", 10)
    monkeypatch.setattr(results, "NUMBERED_AT_ONCE", 10)
    await fill(mail, messages=25)
    async with connected(replace(served, parsing=Parsing(run_in_thread=threads, many_messages=10))) as client:
        await client.log_in("alice", "INBOX")
        await client.run("SEARCH RETURN (SAVE) ALL")
        assert threads.count == 0
        assert (await client.run(command))[-1].startswith("t OK")
    assert threads.count == in_threads
