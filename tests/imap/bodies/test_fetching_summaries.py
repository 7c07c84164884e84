"""FETCH by rows, outlines and what is kept of them in memory, over real sessions of one node."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.imap import header_cache
from replicator.imap.handlers.messages import fetch_summaries
from replicator.imap.rendering.outline import OUTLINER
from replicator.imap.services import ImapServices
from replicator.mailstore import NewMessage
from replicator.mime.skeleton import Skeleton
from replicator.store.bodies.outline_rows import write_outlines
from tests.imap.bodies.outlining import answers, counted, outlining
from tests.imap.client import connected
from tests.imap.session.test_header_slices import Reads, fill_inbox, mail_of
from tests.one_node import HookedMail

COMMAND = "UID FETCH 1:* (ENVELOPE BODY.PEEK[HEADER.FIELDS (Subject)])"


@pytest.fixture(autouse=True)
def _few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rows of four messages, and keep them all."""
    monkeypatch.setattr(header_cache, "SLICE_MESSAGES", 4)
    monkeypatch.setattr(fetch_summaries, "LEAST_KEPT", 1)


async def test_second_fetch_reads_nothing_and_answers_the_same(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    await fill_inbox(mail, range(1, 9))
    [by_bodies] = await answers(served, [COMMAND])
    reads = Reads(mail, monkeypatch)
    async with outlining(mail, autojump_clock):
        assert await answers(served, [COMMAND] * 2) == [by_bodies] * 2
        assert reads.uids == [*range(1, 9)]
        assert await answers(served, ["FETCH 5:8 (ENVELOPE)"])
        assert reads.uids == [*range(1, 9), 5, 6, 7], "a part of a row is another row"


async def test_messages_that_come_and_go_change_their_row_alone(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    await fill_inbox(mail, range(1, 9))
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    async with outlining(mail, autojump_clock):
        [before] = await answers(served, [COMMAND])
        await mail.expunge(view, UidSet.of([2]))
        reads = Reads(mail, monkeypatch)
        [after] = await answers(served, [COMMAND])
        assert reads.uids == [1, 3]
        assert after.count(b" FETCH (") == before.count(b" FETCH (") - 1
        assert b"number 2" not in after


async def test_values_are_not_kept_of_messages_without_an_outline(
    served: ImapServices, mail: HookedMail, autojump_clock: MockClock
) -> None:
    """A lazy preview, too, is NIL only until the outline tells it."""
    await fill_inbox(mail, range(1, 4))
    commands = [COMMAND, "FETCH 1:* (PREVIEW (LAZY))"]
    by_bodies, lazily = await answers(served, commands)
    assert lazily.count(b"PREVIEW NIL") == 3
    async with outlining(mail, autojump_clock):
        told = await answers(served, commands)
    assert told == [by_bodies, lazily.replace(b"NIL", b'"Hello"')]


async def test_responses_stay_in_order_where_some_messages_are_read(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_inbox(mail, range(1, 12))
    [by_bodies] = await answers(served, [COMMAND])
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    made = {view.messages[uid].content_hash: OUTLINER.outline(Skeleton(mail_of(uid))) for uid in (2, 3, 5, 8, 11)}
    await mail.store.write(lambda tx: write_outlines(tx.connection, made, OUTLINER.version))
    with counted(mail, monkeypatch) as read:
        assert await answers(served, [COMMAND]) == [by_bodies]
    assert read == [1, 4, 6, 7, 9, 10]


async def test_message_that_is_gone_is_left_out(
    served: ImapServices, mail: HookedMail, autojump_clock: MockClock
) -> None:
    await fill_inbox(mail, range(1, 9))
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    async with outlining(mail, autojump_clock):
        expunge, outlines = mail.expunge, mail.outlines

        async def expunging(*arguments: object) -> object:
            found = await outlines(*arguments)  # type: ignore[arg-type]
            if 6 in view.messages:
                await expunge(view, UidSet.of([6]))
            return found

        mail.outlines = expunging  # type: ignore[method-assign, assignment]
        async with connected(served) as client:
            await client.log_in("alice", "INBOX")
            said = await client.run("FETCH 1:* (UID BODYSTRUCTURE)")
    assert [line.split()[1] for line in said[:-1]] == ["1", "2", "3", "4", "5", "7", "8"]
    assert said[-1].startswith("t OK [EXPUNGEISSUED] Fetched; 1 of the messages")


async def test_large_fields_come_whole(served: ImapServices, mail: HookedMail, autojump_clock: MockClock) -> None:
    inbox = await mail.folder("alice", "INBOX")
    subject = b"%" + b"x" * 9000 + b'"'
    await mail.save(inbox, NewMessage(b"Subject: %b\r\nTo: a\r\n\r\n" % subject))
    command = "FETCH 1 (BODY.PEEK[HEADER.FIELDS (SUBJECT)]<3.20> BODY.PEEK[HEADER.FIELDS (subject)])"
    [by_body] = await answers(served, [command])
    async with outlining(mail, autojump_clock):
        assert await answers(served, [command]) == [by_body]
    assert b"Subject: %b\r\n\r\n" % subject in by_body
