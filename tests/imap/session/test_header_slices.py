"""SEARCH, SORT and THREAD of messages whose header values are in memory, over real sessions of one node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.imap import header_cache
from replicator.imap.handlers.searches import header_reading, results
from replicator.imap.handlers.searches.header_reading import LARGEST_VALUES_BYTES, HeaderSlice
from replicator.imap.header_cache import SLICE_MESSAGES, HeaderCache, slices
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import BodyReader, NewMessage
from replicator.mail.view import Message
from tests.imap.bodies.outlining import outlining
from tests.imap.client import connected
from tests.imap.numbered_mails import Reads, fill_inbox, mail_of
from tests.one_node import HookedMail

COMMANDS = {
    'SEARCH SUBJECT "number 3"': "* SEARCH 3",
    "SEARCH FROM ann OR TO bob SUBJECT 7": "* SEARCH 2 4 6 7 8",
    "SEARCH NOT HEADER Message-ID <2@x>": "* SEARCH 1 3 4 5 6 7 8",
    "SEARCH SENTSINCE 5-Jan-2024": "* SEARCH 1 2 3 4",
    "SORT (DATE) UTF-8 ALL": "* SORT 8 7 6 5 4 3 2 1",
    "SORT (REVERSE SUBJECT) UTF-8 ALL": "* SORT 8 7 6 5 4 3 2 1",
    "SORT (TO FROM CC) UTF-8 UID 2:7": "* SORT 3 5 7 2 4 6",
    "SORT (DISPLAYTO REVERSE DATE) UTF-8 ALL": "* SORT 1 3 5 7 2 4 6 8",
    "THREAD REFERENCES UTF-8 ALL": "* THREAD (8)(7)(6)(5)(4)(1 2 3)",
    "THREAD REFS UTF-8 ALL": "* THREAD (8)(7)(6)(5)(4)(1 2 3)",
    "THREAD ORDEREDSUBJECT UTF-8 ALL": "* THREAD (8)(7)(6)(5)(4)(3)(2)(1)",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("here_bytes", [0, results.SEARCHED_HERE_BYTES])
async def test_second_command_reads_nothing_and_answers_the_same(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, command: str, here_bytes: int
) -> None:
    monkeypatch.setattr(header_cache, "SLICE_MESSAGES", 2)
    monkeypatch.setattr(results, "SEARCHED_HERE_BYTES", here_bytes)
    await fill_inbox(mail, range(1, 9))
    reads = Reads(served.mail, monkeypatch)
    async with connected(served) as client, connected(served) as other:
        await client.log_in("alice", "INBOX")
        assert (await client.run(command))[0] == COMMANDS[command]
        assert reads.uids
        reads.uids.clear()
        await other.log_in("alice", "INBOX")
        assert (await other.run(command))[0] == COMMANDS[command]
        assert not reads.uids


async def test_messages_that_come_and_go_change_their_slice_alone(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header_cache, "SLICE_MESSAGES", 4)
    await fill_inbox(mail, range(1, 9))
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    reads = Reads(served.mail, monkeypatch)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run("UID SORT (DATE) UTF-8 ALL") == ["* SORT 8 7 6 5 4 3 2 1", "t OK Sorted"]
        await mail.expunge(view, UidSet.of([2]))
        await fill_inbox(mail, [0])
        await client.run("NOOP")
        reads.uids.clear()
        # The order by other criteria is not in memory, but the values are that it compares.
        assert await client.run("UID SORT (REVERSE DATE) UTF-8 ALL") == ["* SORT 9 1 3 4 5 6 7 8", "t OK Sorted"]
        assert reads.uids == [1, 3, 8, 9]


async def test_values_without_a_readable_header_are_not_kept(served: ImapServices, mail: HookedMail) -> None:
    await fill_inbox(mail, range(1, 4))
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        octets = mail_of(2)
        await mail.lose_body(view.messages[2])
        assert await client.run("SORT (SUBJECT) UTF-8 ALL") == [
            "* SORT 2 1 3",
            "t OK Sorted, without the headers of 1 messages",
        ]
        [found, answer] = await client.run("SEARCH NOT SUBJECT 1")
        assert (found, answer[:18]) == ("* SEARCH 3", "t NO [UNAVAILABLE]")
        await mail.save(await mail.folder("alice", "INBOX"), NewMessage(octets))  # the same body is here again
        await client.run("NOOP")
        assert await client.run("SORT (SUBJECT) UTF-8 1:3") == ["* SORT 1 2 3", "t OK Sorted"]
        assert await client.run("SEARCH 1:3 NOT SUBJECT 1") == ["* SEARCH 2 3", "t OK Searched"]


async def test_without_a_cache_commands_answer_the_same(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_inbox(mail, range(1, 9))
    reads = Reads(served.mail, monkeypatch)
    async with connected(replace(served, headers=HeaderCache(0))) as client:
        await client.log_in("alice", "INBOX")
        for command, answer in COMMANDS.items():
            for _ in range(2):
                reads.uids.clear()
                assert (await client.run(command))[0] == answer
                assert reads.uids


async def test_key_is_found_within_one_field_alone(served: ImapServices, mail: HookedMail) -> None:
    inbox = await mail.folder("alice", "INBOX")
    await mail.save(inbox, NewMessage(b"X: one\r\nX:\r\nX: two\r\nEmpty:\r\n\r\n"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for key, found in {
            "X onetwo": "",
            "X ne": " 1",
            'X ""': " 1",
            'Empty ""': " 1",
            'Y ""': "",
            "X tw": " 1",
        }.items():
            assert (await client.run(f"SEARCH HEADER {key}"))[0] == f"* SEARCH{found}", key


async def test_texts_of_large_headers_are_not_held_together(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for number in range(3):
        text = b"word " * (LARGEST_VALUES_BYTES // 5) if number else b"word"
        await mail.save(inbox, NewMessage(b"Subject: %b end%d\r\n\r\n" % (text, number)))
    held = held_by_slices(monkeypatch)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for _ in range(2):
            assert (await client.run("SEARCH SUBJECT word"))[0] == "* SEARCH 1 2 3"
            assert (await client.run("SEARCH NOT SUBJECT end1"))[0] == "* SEARCH 1 3"
            assert (await client.run("SORT (SUBJECT) UTF-8 ALL"))[0] == "* SORT 1 2 3"
    assert held
    assert max(held) < LARGEST_VALUES_BYTES


async def test_message_with_a_large_header_is_read_again_and_no_other(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for number in range(5):
        text = b"word " * (LARGEST_VALUES_BYTES // 5) if number == 2 else b"word"
        await mail.save(inbox, NewMessage(b"From: a%d@x\r\nSubject: %b end%d\r\n\r\n" % (number, text, number)))
    outlined, read_body, read = Reads(served.mail, monkeypatch), served.mail.read_body, list[int]()

    async def reading(message: Message) -> BodyReader:
        read.append(message.uid)
        return await read_body(message)

    monkeypatch.setattr(served.mail, "read_body", reading)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert (await client.run("SEARCH SUBJECT end2"))[0] == "* SEARCH 3"
        assert {*read} == {*outlined.uids} == {1, 2, 3, 4, 5}
        for key, found in {"SUBJECT end2": " 3", "SUBJECT end1": " 2", "NOT SUBJECT word": ""}.items():
            outlined.uids.clear()
            read.clear()
            assert (await client.run(f"SEARCH {key}"))[0] == f"* SEARCH{found}"
            assert (outlined.uids, read) == ([], [3])
        await client.run("SEARCH FROM a2@x")
        read.clear()
        assert (await client.run("SEARCH FROM a2@x"))[0] == "* SEARCH 3"
        assert not read


async def test_texts_that_grow_when_they_are_decomposed_are_not_held_together(
    autojump_clock: MockClock, served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U+FDFA becomes eighteen characters: what an outline holds may take ten times its size as it is compared."""
    inbox = await mail.folder("alice", "INBOX")
    for number in range(3):
        await mail.save(inbox, NewMessage(b"From: %b <end%d@x>\r\n\r\n" % ("\ufdfa".encode() * 1300, number)))
    held = held_by_slices(monkeypatch)
    async with outlining(mail, autojump_clock), connected(served) as client:
        await client.log_in("alice", "INBOX")
        for _ in range(2):
            assert (await client.run("SEARCH OR HEADER FROM none FROM end1"))[0] == "* SEARCH 2"
    assert held
    assert max(held) < LARGEST_VALUES_BYTES


def held_by_slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the octets that the values of each slice take."""
    held = list[int]()
    read_slice = header_reading.read_slice

    async def measured(*arguments: object, **options: object) -> HeaderSlice:
        part = await read_slice(*arguments, **options)  # type: ignore[arg-type]
        held.append(part.columns.size_bytes)
        return part

    monkeypatch.setattr(results, "read_slice", measured)
    return held


@given(uids=st.sets(st.integers(1, 5000), max_size=2000).map(sorted))
def test_slices_hold_all_uids_in_order(uids: list[int]) -> None:
    parts = [*slices(uids)]
    assert [uid for part in parts for uid in part] == uids
    assert all(0 < len(part) <= SLICE_MESSAGES for part in parts)
    assert len(parts) <= 2 + len(uids) // (SLICE_MESSAGES // 4)


@given(gone=st.sets(st.integers(1, 3000), max_size=3))
def test_most_slices_are_the_same_after_a_few_are_gone(gone: set[int]) -> None:
    before = [*map(tuple, slices(range(1, 3001)))]
    after = {*map(tuple, slices([uid for uid in range(1, 3001) if uid not in gone]))}
    assert len([part for part in before if part not in after]) <= len(gone)
