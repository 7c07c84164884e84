"""UPDATE (RFC 5267 section 4.3): what the client makes of the updates is what the server would find."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import UidSet
from replicator.config import LimitsConfig
from replicator.imap.handlers.searches import updates
from replicator.imap.matching.message_reader import Parsing
from replicator.imap.search_updates import UpdatedSearch
from replicator.imap.services import ImapServices
from replicator.imap.wire.search_keys import All, SearchProgram
from replicator.imap.wire.sort_keys import SortCriterion, SortKey
from replicator.mail.mailstore import NewMessage
from tests.imap.client import connected, fill
from tests.one_node import HookedMail, run_inline

T = TypeVar("T")

BY_SIZE = (SortCriterion(SortKey.SIZE),)


def applied(results: list[int], line: str) -> list[int]:
    """Return the results of a client that has read this line, by RFC 5267 sections 4.3.3 and 4.3.4 taken literally."""
    results = [*results]
    for name, pairs in re.findall(r"(ADDTO|REMOVEFROM) \(([^)]*)\)", line):
        words = pairs.split()
        for place, numbers in zip(map(int, words[::2]), map(numbers_of, words[1::2]), strict=True):
            if name == "ADDTO" and place:
                results[place - 1 : place - 1] = numbers
            elif name == "ADDTO":
                results = sorted([*results, *numbers])
            elif place:
                assert results[place - 1 : place - 1 + len(numbers)] == numbers
                del results[place - 1 : place - 1 + len(numbers)]
            else:
                results = [number for number in results if number not in numbers]
    return results


def numbers_of(sequence_set: str) -> list[int]:
    ends = [[int(end) for end in part.split(":")] for part in sequence_set.split(",")]
    return [number for end in ends for number in range(end[0], end[-1] + 1)]


STEPS = st.lists(st.tuples(st.booleans(), st.sets(st.integers(1, 12), max_size=6)), max_size=6)


@given(steps=STEPS, sizes=st.lists(st.integers(0, 3), min_size=12, max_size=12), by_size=st.booleans())
def test_updates_lead_to_the_results(
    steps: Sequence[tuple[bool, set[int]]], sizes: Sequence[int], *, by_size: bool
) -> None:
    search = UpdatedSearch("t", SearchProgram(All()), BY_SIZE if by_size else None, by_uid=False)
    search.begin([])

    def numbers(uids: Sequence[int]) -> list[int]:
        assert sorted(uids) == [*uids] != []
        return [uid + 100 for uid in uids]

    shown, results = list[int](), set[int]()
    for adding, uids in steps:
        if adding:
            rows = [(sizes[uid - 1], uid) if by_size else (uid,) for uid in uids - results]
            lines, results = search.add(rows, numbers), results | uids
        else:
            lines, results = search.remove(uids, numbers), results - uids
        for line in lines:
            shown = applied(shown, line.decode())
        expected = sorted(results, key=lambda uid: (sizes[uid - 1], uid) if by_size else uid)
        assert shown == [uid + 100 for uid in expected]


async def test_message_that_cannot_be_read_stays_in_the_results(served: ImapServices, mail: HookedMail) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for subject in (b"lunch", b"lunch"):
        await mail.save(inbox, NewMessage(b"Subject: " + subject + b"\r\n\r\n"))
    view = await mail.open_mailbox(inbox)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        told = await client.run("UID SEARCH RETURN (UPDATE ALL) UNSEEN SUBJECT lunch", "u")
        assert told[0] == '* ESEARCH (TAG "u") UID ALL 1:2'
        await mail.lose_body(view.messages[1])
        told = await client.run("STORE 1:2 +FLAGS.SILENT (x)")
        assert not [line for line in told if "ESEARCH" in line]
        told = await client.run(r"STORE 1 +FLAGS.SILENT (\Seen)")
        assert told == ['* ESEARCH (TAG "u") UID REMOVEFROM (0 1)', "t OK Stored"]


async def test_message_that_came_before_the_search_and_is_announced_after_it_is_added(
    served: ImapServices, mail: HookedMail
) -> None:
    await fill(mail, 1)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await fill(mail, 1)
        told = await client.run("SEARCH RETURN (UPDATE ALL) ALL", "u")
        assert told[:3] == ['* ESEARCH (TAG "u") ALL 1', "* 2 EXISTS", '* ESEARCH (TAG "u") ADDTO (0 2)']


async def test_large_results_are_not_kept_up_to_date(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "MAX_RESULTS", 2)
    await fill(mail, 3)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        told = await client.run("SEARCH RETURN (UPDATE COUNT) ALL", "u")
        assert told[0] == '* ESEARCH (TAG "u") COUNT 3'
        assert told[1].startswith('* NO [NOUPDATE "u"] Searches with more than 2 results are not')
        assert (await client.run("CANCELUPDATE u")) == ["t BAD Expected a quoted string at column 16"]
        assert (await client.run('CANCELUPDATE "u"'))[0].startswith("t BAD No search with tag u ")


async def test_results_that_become_too_many_are_kept_up_to_date_no_longer(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "MAX_RESULTS", 2)
    await fill(mail, 2)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.run("SEARCH RETURN (UPDATE COUNT) ALL", "u")
        await fill(mail, 1)
        told = await client.run("NOOP")
        assert any(line.startswith('* NO [NOUPDATE "u"] Searches with more than 2 results are not') for line in told)
        await fill(mail, 1)
        assert not [line for line in await client.run("NOOP") if "ESEARCH" in line or "NOUPDATE" in line]


async def test_update_that_takes_too_much_work_ends(served: ImapServices, mail: HookedMail) -> None:
    await fill(mail, 2)
    served = replace(served, limits=LimitsConfig(imap_search_work=10))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert (await client.run("SEARCH RETURN (UPDATE COUNT) SEEN", "u"))[0] == '* ESEARCH (TAG "u") COUNT 0'
        await fill(mail, 11)
        told = await client.run("NOOP")
        assert '* NO [NOUPDATE "u"] It takes too much work to keep this search up to date' in told
        assert not [line for line in await client.run("STORE 1 +FLAGS.SILENT (\\Seen)") if "ESEARCH" in line]


async def test_what_changes_while_results_are_brought_up_to_date_is_told_later(
    served: ImapServices, mail: HookedMail
) -> None:
    """REMOVEFROM comes before EXPUNGE (RFC 5267 section 4.3.4), and ADDTO with EXISTS, also if the work takes long."""
    inbox = await mail.folder("alice", "INBOX")
    for day in range(1, 13):
        await mail.save(inbox, NewMessage(b"x", received_ms=day * 86_400_000))
    view = await mail.open_mailbox(inbox)
    gone_meanwhile = list[int]()

    async def work_long(work: Callable[[], T]) -> T:
        if gone_meanwhile:
            await mail.expunge(view, UidSet.of([gone_meanwhile.pop()]))
            await fill(mail, 1)
        return await run_inline(work)

    async with connected(replace(served, parsing=Parsing(run_in_thread=work_long, many_messages=5))) as client:
        await client.log_in("alice", "INBOX")
        await client.run("SEARCH RETURN (UPDATE COUNT) ALL", "a")
        await client.run("SORT RETURN (UPDATE COUNT) (REVERSE ARRIVAL) UTF-8 ALL", "b")
        for uid in (1, 4):
            await mail.expunge(view, UidSet.of([uid]))
        gone_meanwhile.append(5)
        assert await client.run("NOOP") == [
            '* ESEARCH (TAG "a") REMOVEFROM (0 1,4)',
            '* ESEARCH (TAG "b") REMOVEFROM (12 1 9 4)',
            "* 4 EXPUNGE",
            "* 1 EXPUNGE",
            "t OK Nothing done",
        ]
        assert await client.run("NOOP") == [
            '* ESEARCH (TAG "a") REMOVEFROM (0 3)',
            '* ESEARCH (TAG "b") REMOVEFROM (8 3)',
            "* 3 EXPUNGE",
            "* 10 EXISTS",
            '* ESEARCH (TAG "a") ADDTO (0 10)',
            '* ESEARCH (TAG "b") ADDTO (1 10)',
            "* 10 RECENT",
            "t OK Nothing done",
        ]
