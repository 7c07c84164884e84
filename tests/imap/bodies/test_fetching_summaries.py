"""FETCH by rows, outlines and what is kept of them in memory, over real sessions of one node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pytest
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.imap import header_cache
from replicator.imap.handlers.messages import fetch_summaries
from replicator.imap.handlers.messages.fetch_summaries import kept_name
from replicator.imap.header_cache import LONGEST_NAME_BYTES
from replicator.imap.rendering.outline import OUTLINER
from replicator.imap.rendering.summaries import Summaries
from replicator.imap.services import ImapServices
from replicator.imap.wire.fetch_items import Attribute, BodySection, Partial, SectionText
from replicator.mail.mailstore import NewMessage
from replicator.mail.view import MailboxView, Message
from replicator.mime.skeleton import Skeleton
from replicator.store.bodies.outline_rows import write_outlines
from tests.imap.bodies.outlining import answers, counted, outlining
from tests.imap.client import connected
from tests.imap.numbered_mails import Reads, fill_inbox, mail_of
from tests.imap.turns import counting_turns
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
    reads = Reads(served.mail, monkeypatch)
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
        reads = Reads(served.mail, monkeypatch)
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
    monkeypatch.setattr(header_cache, "SLICE_MESSAGES", 20)
    await fill_inbox(mail, range(1, 12))
    [by_bodies] = await answers(served, [COMMAND])
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    await outline(mail, view, 2, 3, 5, 8, 11)
    with counted(served.mail, monkeypatch) as read:
        [said] = await answers(served, [COMMAND])
    assert read == [1, 4, 6, 7, 9, 10]
    assert said == by_bodies


async def outline(mail: HookedMail, view: MailboxView, *uids: int) -> None:
    made = {view.messages[uid].content_hash: OUTLINER.outline(Skeleton(mail_of(uid))) for uid in uids}
    await mail.store.write(lambda tx: write_outlines(tx.connection, made, OUTLINER.version))


async def test_row_that_lacks_a_few_messages_is_kept_and_these_are_looked_for_again(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header_cache, "SLICE_MESSAGES", 20)
    await fill_inbox(mail, range(1, 12))
    [by_bodies] = await answers(served, [COMMAND])
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    await outline(mail, view, *range(1, 11))
    reads = Reads(served.mail, monkeypatch)
    assert await answers(served, [COMMAND] * 2) == [by_bodies] * 2
    assert reads.uids == [*range(1, 12), 11]
    await outline(mail, view, 11)
    with counted(served.mail, monkeypatch) as read:
        assert await answers(served, [COMMAND]) == [by_bodies]
    assert read == []


async def test_flags_are_those_of_the_moment_and_new_keywords_come_before(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_inbox(mail, range(1, 3))
    view = await served.mail.open_mailbox(await mail.folder("alice", "INBOX"))
    await outline(mail, view, 1, 2)
    outlines = served.mail.outlines

    async def flagging(messages: Iterable[Message], version: int) -> Mapping[bytes, bytes]:
        found = await outlines(messages, version)
        await served.mail.store_flags(view, UidSet.of([2]), added=frozenset({"new"}))
        return found

    monkeypatch.setattr(served.mail, "outlines", flagging)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        said = await client.run("FETCH 2 (FLAGS MODSEQ BODYSTRUCTURE)")
    assert "new" in said[0]
    assert said[0].startswith("* FLAGS (")
    [told] = [line for line in said if line.startswith("* 2 FETCH")][:1]
    assert re.match(r"\* 2 FETCH \(FLAGS \(.*new.*\) MODSEQ \(3\)", told)


async def test_message_without_an_id_is_a_conversation_of_its_own_and_not_read(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    await mail.save(await mail.folder("alice", "INBOX"), NewMessage(b"Subject: x\r\n\r\n"))
    [by_body] = await answers(served, ["FETCH 1 THREADID"])
    async with outlining(mail, autojump_clock):
        with counted(served.mail, monkeypatch) as read:
            assert await answers(served, ["FETCH 1 THREADID"]) == [by_body]
    assert read == []


async def test_long_names_are_not_joined_for_many_messages(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(fetch_summaries, "NAMES_BYTES", 10_000)
    monkeypatch.setattr(header_cache, "SLICE_MESSAGES", 20)
    await fill_inbox(mail, range(1, 9))
    joined = list[int]()
    responses = Summaries.responses

    def measured(self: Summaries, *arguments: Any) -> bytes:
        joined.append(len(said := responses(self, *arguments)))
        return said

    monkeypatch.setattr(Summaries, "responses", measured)
    async with outlining(mail, autojump_clock):
        [said] = await answers(served, [f"FETCH 1:* (BODY.PEEK[HEADER.FIELDS ({'x' * 3000})])"])
    assert len(said) > 8 * 3000
    assert max(joined) < 10_000


async def test_values_under_long_names_are_not_kept(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    await fill_inbox(mail, range(1, 5))
    reads = Reads(served.mail, monkeypatch)
    async with outlining(mail, autojump_clock):
        await answers(served, [f"FETCH 1:* (BODY.PEEK[HEADER.FIELDS ({'x' * LONGEST_NAME_BYTES})])"] * 2)
    assert reads.uids == [*range(1, 5)] * 2


@pytest.mark.parametrize(
    "wanted", ["BODYSTRUCTURE BODY.PEEK[1]", " ".join(f"BODY.PEEK[TEXT]<{n}.1>" for n in range(6))]
)
async def test_bodies_that_take_time_are_read_and_told_with_pauses(
    served: ImapServices, mail: HookedMail, wanted: str
) -> None:
    await fill_inbox(mail, range(1, 31))
    async with connected(served) as client, counting_turns() as turns:
        await client.log_in("alice", "INBOX")
        before = turns.count
        await client.run(f"FETCH 1:* ({wanted})")
        assert turns.count - before >= 2 * 30


async def test_rows_are_told_with_pauses(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_summaries, "ROWS_AT_ONCE", 1)
    await fill_inbox(mail, range(1, 31))
    async with connected(served) as client, counting_turns() as turns:
        await client.log_in("alice", "INBOX")
        before = turns.count
        await client.run("FETCH 1:* FLAGS")
        assert turns.count - before >= 30


def test_kept_name_is_the_same_for_all_spellings() -> None:
    fields = partial(BodySection, (), SectionText.HEADER_FIELDS)
    assert kept_name(fields(("Subject",))) == kept_name(fields(("SUBJECT",), peek=True))
    names = [kept_name(fields(("a",), one)) for one in (None, Partial(1, 2), Partial(1, 3), Partial(2, 2))]
    assert len({*names, kept_name(fields(("a", "b"))), kept_name(Attribute.ENVELOPE)}) == 6


async def test_message_that_is_gone_is_left_out(
    served: ImapServices, mail: HookedMail, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_inbox(mail, range(1, 9))
    view = await served.mail.open_mailbox(await mail.folder("alice", "INBOX"))
    async with outlining(mail, autojump_clock):
        expunge, outlines = served.mail.expunge, served.mail.outlines

        async def expunging(*arguments: object) -> object:
            found = await outlines(*arguments)  # type: ignore[arg-type]
            if 6 in view.messages:
                await expunge(view, UidSet.of([6]))
            return found

        monkeypatch.setattr(served.mail, "outlines", expunging)
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
