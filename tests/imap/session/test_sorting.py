"""SORT (RFC 5256) and the comparator of I18NLEVEL=1 (RFC 5255) over real sessions of one node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from replicator.config import LimitsConfig
from replicator.imap.handlers.searches import sort
from replicator.imap.matching.message_reader import Parsing
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import NewMessage
from replicator.runtime.metrics import RefusalMetrics
from tests.imap.client import connected, fill
from tests.imap.counted_threads import CountedThreads
from tests.one_node import HookedMail


async def test_texts_are_compared_in_titlecase_and_decomposed(served: ImapServices, mail: HookedMail) -> None:
    """I18NLEVEL=1 (RFC 5255 section 4.2) for SEARCH and SORT: i;unicode-casemap (RFC 5051)."""
    for subject in ("zebra", "Äpfel", "a\u0308pfel", "apfel", "Apfelsine"):
        await fill(mail, 1, f"Subject: {subject}\r\n\r\n{subject}\r\n".encode())
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for key in ("SUBJECT", "BODY", "TEXT"):
            await client.send(f"t SEARCH CHARSET UTF-8 {key} {{6+}}\r\näPFEL\r\n".encode())
            assert await client.until("t") == ["* SEARCH 2 3", "t OK Searched"]
        assert await client.run("SORT (SUBJECT) UTF-8 ALL") == ["* SORT 4 5 2 3 1", "t OK Sorted"]


async def test_message_without_a_readable_header_is_sorted_as_if_it_had_none(
    served: ImapServices, mail: HookedMail
) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for subject in (b"b", b"c", b"a"):
        await mail.save(inbox, NewMessage(b"Subject: " + subject + b"\r\n\r\n"))
    view = await mail.open_mailbox(inbox)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await mail.lose_body(view.messages[2])
        sorted_ = await client.run("SORT (SUBJECT) UTF-8 ALL")
        assert sorted_ == ["* SORT 2 3 1", "t OK Sorted, without the headers of 1 messages"]
        assert await client.run("SORT (SIZE) UTF-8 ALL") == ["* SORT 1 2 3", "t OK Sorted"]


async def test_repeated_criteria_count_where_they_come_first(served: ImapServices, mail: HookedMail) -> None:
    for subject, day in (("b", 1), ("a", 3), ("a", 2)):
        await fill(mail, 1, f"Subject: {subject}\r\nDate: {day} Jan 2024 10:00:00 +0000\r\n\r\n".encode())
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for criteria in ("SUBJECT DATE", "SUBJECT DATE SUBJECT", "SUBJECT DATE REVERSE SUBJECT"):
            assert await client.run(f"SORT ({criteria}) UTF-8 ALL") == ["* SORT 3 2 1", "t OK Sorted"]


async def test_sort_beyond_a_limit_is_refused_and_counted(served: ImapServices, mail: HookedMail) -> None:
    registry = CollectorRegistry()
    limits = LimitsConfig(imap_sort_messages=10, imap_search_work=40)
    served = replace(served, limits=limits, refusals=RefusalMetrics(registry))
    await fill(mail, 11, b"X: y\r\n" * 500 + b"\r\n")
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run("SORT RETURN (COUNT) (ARRIVAL SIZE) UTF-8 1:10") == [
            '* ESEARCH (TAG "t") COUNT 10',
            "t OK Sorted",
        ]
        [refused] = await client.run("SORT (SIZE) UTF-8 ALL")
        assert refused.startswith("t NO [LIMIT] A SORT or THREAD may have 10 messages, not 11;")
        [refused] = await client.run("SORT (SUBJECT) UTF-8 1:10")  # reads 3 KiB of each
        assert refused.startswith("t NO [LIMIT] The SORT takes more than 40 steps;")
    for limit in ("imap_sort_messages", "imap_search_work"):
        assert registry.get_sample_value("replicator_refusals_total", {"door": "imap", "limit": limit}) == 1


@pytest.mark.parametrize(
    ("command", "in_threads"),
    [
        ("SORT (SIZE) UTF-8 1:10", 0),
        ("SORT (SUBJECT) UTF-8 1:11", 1),
        ("SORT (FROM) UTF-8 1", 0),
        ("SORT (FROM) UTF-8 12", 1),  # its header is large
    ],
)
async def test_what_takes_long_to_sort_is_sorted_in_a_thread(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, command: str, in_threads: int
) -> None:
    threads = CountedThreads()
    monkeypatch.setattr(sort, "SORTED_HERE", 10)
    await fill(mail, 11)
    await fill(mail, 1, b"X: y\r\n" * 8000 + b"\r\n")
    async with connected(replace(served, parsing=Parsing(run_in_thread=threads))) as client:
        await client.log_in("alice", "INBOX")
        assert (await client.run(command))[-1] == "t OK Sorted"
    assert threads.count == in_threads
