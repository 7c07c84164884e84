"""SORT after messages have come and gone, over real sessions of one node: the answer is that of an order made anew."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from protocol.values import UidSet
from replicator.imap.handlers.searches import order_insertion
from replicator.imap.header_cache import HeaderCache
from replicator.imap.ordering.order import Order
from replicator.imap.ordering.sorting import Sortables
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import NewMessage
from replicator.mail.view import Message
from tests.effort import examples
from tests.imap.client import connected, fill
from tests.one_node import HookedMail

CRITERIA = ["SUBJECT", "REVERSE SUBJECT", "DATE", "REVERSE FROM SIZE", "SUBJECT REVERSE ARRIVAL", "REVERSE DATE CC TO"]


def drawn(draw: random.Random) -> NewMessage:
    """Return a message with values that others have, too."""
    fields = [f"Subject: {draw.choice(['a', 'Re: a', 'b', 'ab', ''])}", f"From: {draw.choice('ab')}@x.example"]
    fields += [f"Date: {draw.randint(1, 3)} Feb 2024 12:00:00 +0000"] if draw.random() < 0.8 else []
    fields += [f"Cc: {draw.choice('ab')}@x.example"] if draw.random() < 0.5 else []
    return NewMessage("\r\n".join([*fields, "", "x" * draw.randint(0, 2), ""]).encode(), received_ms=draw.randint(1, 3))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of messages of each order that is made anew. Slices are small."""
    counts, order = list[int](), Sortables.order

    def counted(sortables: Sortables) -> Order:
        counts.append(len(sortables))
        return order(sortables)

    monkeypatch.setattr(Sortables, "order", counted)
    monkeypatch.setattr("replicator.imap.header_cache.SLICE_MESSAGES", 4)
    return counts


@pytest.mark.parametrize("seed", range(examples(2, 40)))
async def test_few_new_messages_are_inserted(
    served: ImapServices, mail: HookedMail, made: list[int], seed: int
) -> None:
    draw, inbox, steps = random.Random(seed), await mail.folder("alice", "INBOX"), 6
    for _ in range(draw.randint(9, 30)):
        await mail.save(inbox, drawn(draw))
    view = await mail.open_mailbox(inbox)
    async with connected(served) as client, connected(replace(served, headers=HeaderCache(0))) as other:
        for session in (client, other):
            await session.log_in("alice", "INBOX")
        for _ in range(steps):
            for criteria in CRITERIA:
                command = f"{draw.choice(['', 'UID '])}SORT ({criteria}) UTF-8 ALL"
                answers = [await session.run(command) for session in (client, other)]
                assert answers[0] == answers[1], command
            if gone := draw.sample([*view.messages], min(len(view.messages), draw.randint(0, 3))):
                await mail.expunge(view, UidSet.of(gone))
            for _ in range(draw.randint(0, 4)):
                await mail.save(inbox, drawn(draw))
            for session in (client, other):
                await session.run("NOOP")
    assert len(made) == (steps + 1) * len(CRITERIA)


async def test_messages_are_compared_anew_that_lie_below_those_of_the_order_or_are_few_of_them(
    served: ImapServices, mail: HookedMail, made: list[int]
) -> None:
    draw, inbox = random.Random(1), await mail.folder("alice", "INBOX")
    for _ in range(12):
        await mail.save(inbox, drawn(draw))
    async with connected(served) as client, connected(replace(served, headers=HeaderCache(0))) as other:
        for session in (client, other):
            await session.log_in("alice", "INBOX")
        for messages in ("2:5,8:12", "1:12", "1:5,11", "1,11"):
            answers = [await session.run(f"SORT (SUBJECT) UTF-8 {messages}") for session in (client, other)]
            assert answers[0] == answers[1]
    assert made == [9, 9, 12, 12, 6, 2, 2]


async def test_many_new_messages_are_compared_anew(
    served: ImapServices, mail: HookedMail, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_insertion, "MOST_INSERTED", 2)
    draw, inbox = random.Random(2), await mail.folder("alice", "INBOX")
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for new in (8, 2, 3):
            for _ in range(new):
                await mail.save(inbox, drawn(draw))
            await client.run("NOOP")
            await client.run("SORT (SUBJECT) UTF-8 ALL")
    assert made == [8, 13]


async def test_messages_that_go_meanwhile_are_left_out(
    served: ImapServices, mail: HookedMail, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for subject in "bcdefghi":
        await fill(mail, 1, f"Subject: {subject}\r\n\r\n".encode())
    view = await served.mail.open_mailbox(await mail.folder("alice", "INBOX"))
    outlines = served.mail.outlines

    async def expunging(messages: Sequence[Message], version: int) -> Mapping[bytes, bytes]:
        if [message.uid for message in messages] == [9]:
            await served.mail.expunge(view, UidSet.of([1]))
        return await outlines(messages, version)

    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert (await client.run("SORT (SUBJECT) UTF-8 ALL"))[0] == "* SORT 1 2 3 4 5 6 7 8"
        await fill(mail, 1, b"Subject: a\r\n\r\n")
        await client.run("NOOP")
        monkeypatch.setattr(served.mail, "outlines", expunging)
        assert (await client.run("SORT (SUBJECT) UTF-8 ALL"))[0] == "* SORT 9 2 3 4 5 6 7 8"
    assert made == [8, 8]


async def test_new_message_without_a_readable_header_is_counted(
    served: ImapServices, mail: HookedMail, made: list[int]
) -> None:
    await fill(mail, 3, b"Subject: b\r\n\r\n")  # a slice
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run("SORT (SUBJECT) UTF-8 ALL") == ["* SORT 1 2 3", "t OK Sorted"]
        await fill(mail, 1, b"Subject: c\r\n\r\n")
        await mail.lose_body(view.messages[4])
        await client.run("NOOP")
        answer = ["* SORT 4 1 2 3", "t OK Sorted, without the headers of 1 messages"]
        assert await client.run("SORT (SUBJECT) UTF-8 ALL") == answer
    assert made == [3, 4]
