r"""A FETCH marks exactly the messages that it sends as `\Seen`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import pytest
import trio
import trio.testing

from protocol.units import KIB
from protocol.values import UidSet
from replicator.errors import DiskFullError
from replicator.imap.handlers.messages.fetch_reading import SLICE_BYTES, SLICE_MESSAGES
from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import BodyReader, Folder, NewMessage
from replicator.mail.view import SEEN, MailboxView, Message
from tests.imap.client import LOOPBACK, Client, connected, fill
from tests.one_node import HookedMail, nothing

SLICES = 3
MANY = SLICES * SLICE_MESSAGES - SLICE_MESSAGES // 2
SLOW_S = 20.0


def seen(view: MailboxView) -> list[int]:
    return list(view.by_flag.get(SEEN, ()))


class CountedChanges:
    """A hook that counts changes, and with `error` makes all of them fail."""

    def __init__(self, error: DiskFullError | None = None) -> None:
        self.count = 0
        self._error = error

    async def __call__(self, _user: str) -> None:
        self.count += 1
        if self._error is not None:
            raise self._error


async def save_bodies(mail: HookedMail, *bodies: bytes) -> tuple[Folder, MailboxView]:
    """Save messages with these bodies, from UID 1 on."""
    inbox = await mail.folder("alice", "INBOX")
    for body in bodies:
        await mail.save(inbox, NewMessage(body))
    return inbox, await mail.open_mailbox(inbox)


async def test_messages_not_sent_to_a_closed_connection_are_not_seen(mail: HookedMail, served: ImapServices) -> None:
    view = await mail.open_mailbox(await fill(mail, MANY))
    ours, theirs = trio.testing.lockstep_stream_pair()
    client = Client(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address=LOOPBACK))
        await client.line()
        await client.log_in("alice", "INBOX")
        await client.send("a FETCH 1:* BODY[]\r\n")
        assert (await ours.receive_some(100)).startswith(b"* 1 FETCH")
        await ours.aclose()
    assert seen(view) == list(range(1, SLICE_MESSAGES + 1))


async def test_message_without_a_body_is_never_marked(mail: HookedMail, served: ImapServices) -> None:
    _, view = await save_bodies(mail, b"1", b"2", b"3")
    await mail.lose_body(view.messages[2])
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        with view.subscribe() as changes:
            lines = await client.run("FETCH 1:* BODY[]")
            assert changes.take() == ({1, 3}, set())
    assert lines[:2] == [f'* {n} FETCH (BODY[] "{n}" FLAGS (\\Seen \\Recent))' for n in (1, 3)]
    assert lines[2].startswith("t NO [UNAVAILABLE] ")


async def test_another_sessions_seen_flag_stays(mail: HookedMail, served: ImapServices) -> None:
    _, view = await save_bodies(mail, b"1", b"2", b"3")
    await mail.lose_body(view.messages[2])

    async def mark_first(_user: str) -> None:
        mail.before_change = nothing
        await mail.store_flags(view, UidSet.of([2]), added=frozenset({SEEN}))

    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        mail.before_change = mark_first
        lines = await client.run("FETCH 1:* BODY[]")
        assert lines[2] == "* 2 FETCH (FLAGS (\\Seen \\Recent))"
        assert lines[3].startswith("t NO [UNAVAILABLE] ")
    assert seen(view) == [1, 2, 3]


async def test_one_change_marks_a_whole_slice(mail: HookedMail, served: ImapServices) -> None:
    view = await mail.open_mailbox(await fill(mail, MANY))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        mail.before_change = changes = CountedChanges()
        lines = await client.run("FETCH 1:* BODY[TEXT]")
        assert sum(line == " FLAGS (\\Seen \\Recent))" for line in lines) == MANY
        assert changes.count == SLICES
        assert seen(view) == list(range(1, MANY + 1))
        await client.run("FETCH 1:* BODY[TEXT]")
        assert changes.count == SLICES


async def test_slices_of_large_bodies_are_short(mail: HookedMail, served: ImapServices) -> None:
    size = 300 * KIB
    of_a_slice = -(-SLICE_BYTES // size)
    _, view = await save_bodies(mail, *[b"x" * size] * (of_a_slice + 1))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        mail.before_change = changes = CountedChanges()
        assert (await client.run("FETCH 1:* BODY[]"))[-1] == "t OK Fetched"
    assert changes.count == 2
    assert len(seen(view)) == of_a_slice + 1


async def test_failed_change_is_not_retried_for_each_slice(mail: HookedMail, served: ImapServices) -> None:
    """Each attempt may wait half a minute for a master."""
    view = await mail.open_mailbox(await fill(mail, MANY))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        mail.before_change = changes = CountedChanges(DiskFullError("full"))
        lines = await client.run("FETCH 1:* BODY[TEXT]")
    assert sum(line.startswith("* ") for line in lines) == MANY
    assert lines[-1] == "t OK Fetched"
    assert changes.count == 1
    assert not seen(view)


@pytest.mark.parametrize("items", ["BODY[TEXT]", "BODY.PEEK[TEXT]"])
async def test_local_bodies_do_not_wait_for_remote_ones(
    mail: HookedMail,
    served: ImapServices,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    items: str,
) -> None:
    _, view = await save_bodies(mail, b"\r\n1", b"\r\n2", b"\r\n3")
    read_body = served.mail.read_body

    async def slow(message: Message) -> BodyReader:
        if message.uid > 1:
            await trio.sleep(SLOW_S)
        return await read_body(message)

    read_bodies = served.mail.read_bodies

    async def local(messages: Iterable[Message], max_bytes: int) -> Mapping[bytes, BodyReader]:
        return await read_bodies([message for message in messages if message.uid == 1], max_bytes)

    monkeypatch.setattr(served.mail, "read_body", slow)
    monkeypatch.setattr(served.mail, "read_bodies", local)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        began = autojump_clock.current_time()
        await client.send(f"t FETCH 1:* {items}\r\n")
        assert (await client.line()).startswith('* 1 FETCH (BODY[TEXT] "1"')
        assert (await client.line()).startswith('* 2 FETCH (BODY[TEXT] "2"')
        assert autojump_clock.current_time() - began < 2 * SLOW_S
        assert seen(view) == ([] if "PEEK" in items else [1, 2])
        assert len(await client.until("t")) == 2
