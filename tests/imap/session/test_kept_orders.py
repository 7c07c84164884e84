"""Orders of SORT and THREAD in memory, over real sessions of one node: they save work and change no answer."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from protocol.values import UidSet
from replicator.imap.handlers.searches import sort, thread
from replicator.imap.handlers.searches.kept_orders import keep_order
from replicator.imap.header_cache import HeaderCache, OrderedBy
from replicator.imap.ordering.order import Order
from replicator.imap.services import ImapServices
from replicator.imap.session import Session
from replicator.mail.mailstore import NewMessage
from replicator.mail.view import Message
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.repair.row_repair import OtherBody, put_right
from tests.effort import examples
from tests.imap.client import connected
from tests.imap.drawn_mails import mails
from tests.imap.numbered_mails import fill_inbox, mail_of
from tests.one_node import HookedMail

KEYS = ["SUBJECT", "FROM", "DATE", "REVERSE SUBJECT", "SUBJECT REVERSE DATE", "TO ARRIVAL", "SIZE", "DISPLAYFROM"]
ORDERS = [*(f"SORT ({key})" for key in KEYS), *(f"THREAD {name}" for name in ("REFERENCES", "REFS", "ORDEREDSUBJECT"))]
SEARCHES = ["ALL", "ALL", "UNSEEN", "SUBJECT lunch"]


class Made:
    """Counts the orders that are made anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        async def counted(session: Session, uids: array[int], by: OrderedBy, order: Order) -> None:
            self.count += 1
            await keep_order(session, uids, by, order)

        for module in (sort, thread):
            monkeypatch.setattr(module, "keep_order", counted)


@pytest.mark.parametrize(
    "command", ["SORT (SUBJECT)", "SORT (REVERSE FROM SUBJECT)", "THREAD REFERENCES", "THREAD REFS"]
)
async def test_order_of_the_same_messages_is_made_once(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    await fill_inbox(mail, range(1, 9))
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    made = Made(monkeypatch)
    async with connected(served) as client, connected(served) as other:
        for session in (client, other):
            await session.log_in("alice", "INBOX")
        first = await client.run(f"{command} UTF-8 ALL")
        assert (await client.run(f"{command} UTF-8 1:8"), await other.run(f"{command} UTF-8 NOT ANSWERED")) == (
            first,
            first,
        )
        await mail.store_flags(view, UidSet.of([3]), added=frozenset({"\\Seen"}))
        assert (await client.run(f"{command} UTF-8 ALL"))[0] == first[0]
        assert made.count == 1
        await client.run(f"{command} UTF-8 UNSEEN")
        await fill_inbox(mail, [0])
        await client.run("NOOP")
        assert await client.run(f"{command} UTF-8 1:8") == first
        assert made.count == 2
        await client.run(f"{command} UTF-8 ALL")
        await client.run(f"{command} UTF-8 ALL")
        assert made.count == 3


@pytest.mark.parametrize("seed", range(examples(2, 30)))
async def test_answers_are_those_of_orders_that_are_made_anew(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """While messages come and go, before and after the client hears of that."""
    draw, made = random.Random(seed), Made(monkeypatch)
    inbox = await mail.folder("alice", "INBOX")
    drawn = [NewMessage(body, received_ms=1000 * received_s) for body, received_s in mails(seed, 30)]
    for message in drawn[:20]:
        await mail.save(inbox, message)
    view = await mail.open_mailbox(inbox)
    asked = 0
    async with connected(served) as client, connected(replace(served, headers=HeaderCache(0))) as other:
        for session in (client, other):
            await session.log_in("alice", "INBOX")
        for step in range(6):
            for order in draw.choices(ORDERS, k=6) * 2:
                command = f"{draw.choice(['', 'UID '])}{order} UTF-8 {draw.choice(SEARCHES)}"
                answers = [(await session.run(command))[0] for session in (client, other)]
                assert answers[0] == answers[1], command
                asked += 1
            some = UidSet.of(draw.sample([*view.messages], 2))
            if step % 2:
                await mail.expunge(view, some)
            else:
                await mail.store_flags(view, some, added=frozenset({"\\Seen"}))
            await mail.save(inbox, drawn[20 + step])
            for session in (client, other) if draw.random() < 0.5 else ():
                await session.run("NOOP")
    assert asked < made.count < 2 * asked


@pytest.mark.parametrize(
    ("command", "answers"),
    [
        ("SORT (REVERSE SUBJECT)", ["* SORT 8 7 6 4 3 2 1", "* SORT 8 7 6 4 2 1"]),
        ("THREAD REFS", ["* THREAD (8)(7)(6)(4)(1 2 3)", "* THREAD (8)(7)(6)(4)(1 2)"]),
    ],
)
async def test_order_is_that_of_the_messages_that_were_read(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, command: str, answers: Sequence[str]
) -> None:
    """Another session expunges one message before its slice is read, and another one after that."""
    await fill_inbox(mail, range(1, 9))
    view = await served.mail.open_mailbox(await mail.folder("alice", "INBOX"))
    outlines, gone = served.mail.outlines, [3, 5]

    async def expunging(messages: Sequence[Message], version: int) -> Mapping[bytes, bytes]:
        if gone:
            await served.mail.expunge(view, UidSet.of([gone.pop()]))
        return await outlines(messages, version)

    monkeypatch.setattr(served.mail, "outlines", expunging)
    monkeypatch.setattr("replicator.imap.header_cache.SLICE_MESSAGES", 4)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert [(await client.run(f"{command} UTF-8 ALL"))[0] for _ in answers] == answers
    assert not gone


async def test_order_is_that_of_the_selected_mailbox(served: ImapServices, mail: HookedMail) -> None:
    """Two mailboxes have the same UIDs."""
    await mail.create_folder("alice", "Other")
    for folder, numbers in {"INBOX": [1, 2, 3], "Other": [2, 3, 1]}.items():
        for number in numbers:
            await mail.save(await mail.folder("alice", folder), NewMessage(mail_of(number)))
    async with connected(served) as client:
        await client.log_in("alice")
        for command in ("SELECT INBOX", "EXAMINE Other", "SELECT INBOX"):
            await client.run(command)
            told = "3 1 2" if "Other" in command else "1 2 3"
            assert (await client.run("SORT (SUBJECT) UTF-8 ALL"))[0] == f"* SORT {told}"


async def test_order_is_not_that_of_a_body_that_was_put_right(served: ImapServices, mail: HookedMail) -> None:
    await fill_inbox(mail, [1, 2, 3])
    key = MailboxKey.of(await mail.folder("alice", "INBOX"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run("SORT (SUBJECT) UTF-8 ALL") == ["* SORT 1 2 3", "t OK Sorted"]

    def correct(tx: Transaction) -> None:
        rows = {row.uid: row for row in queries.mailbox_rows(tx.connection, key.mailbox_id)}
        other = OtherBody(rows[1], rows[3].content_hash, rows[3].size_bytes)
        assert put_right(tx, key, [other], ()) == [other]

    await mail.store.write(correct)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run("SORT (SUBJECT) UTF-8 ALL") == ["* SORT 2 1 3", "t OK Sorted"]


async def test_order_without_a_readable_header_is_not_kept(served: ImapServices, mail: HookedMail) -> None:
    await fill_inbox(mail, [1, 2, 3])
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await mail.lose_body(view.messages[2])
        for _ in range(2):
            for command, told in {"SORT (SUBJECT)": "SORT 2 1 3", "THREAD REFERENCES": "THREAD (3)(1)(2)"}.items():
                answer = await client.run(f"{command} UTF-8 ALL")
                assert (answer[0], "without the headers of 1 messages" in answer[1]) == (f"* {told}", True)
