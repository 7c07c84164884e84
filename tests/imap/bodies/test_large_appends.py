from __future__ import annotations

import dataclasses

import pytest
import trio
import trio.testing

from protocol.framing import LiteralChunk
from replicator.errors import DiskFullError, MailError, MessageTooLargeError, UnavailableError
from replicator.imap.services import ImapServices
from replicator.imap.wire.connection import BLOCK_BYTES, WHOLE_LITERAL_BYTES, Connection
from replicator.mail.mailstore import INBOX
from replicator.users import Login
from tests.imap.arrangements import in_the_core
from tests.imap.client import LOOPBACK, Client, ReversedNameUsers, connected
from tests.one_node import HookedMail, SinkLog

LARGE = b"Subject: large\r\n\r\n\0" + bytes(range(256)) * (20 * WHOLE_LITERAL_BYTES // 256)


def append_command(body: bytes, to: str = "INBOX", tag: str = "a") -> bytes:
    return f"{tag} APPEND {to} {{{len(body)}+}}\r\n".encode() + body + b"\r\n"


async def send_in_pieces(client: Client, data: bytes, size: int | None) -> None:
    for start in range(0, len(data), size or len(data)):
        await client.send(data[start : start + (size or len(data))])


@pytest.fixture
def sinks(mail: HookedMail) -> SinkLog:
    mail.sinks = SinkLog()
    return mail.sinks


@in_the_core
@pytest.mark.parametrize("size", [None, 1009, BLOCK_BYTES])
async def test_large_message_is_stored_piece_by_piece(
    mail: HookedMail, served: ImapServices, sinks: SinkLog, size: int | None
) -> None:
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await send_in_pieces(client, append_command(LARGE) + b"b NOOP\r\n", size)
        assert (await client.until("a"))[-1].endswith(" 1] Appended")
        assert (await client.line()).startswith("b OK")
    assert await mail.bodies("alice") == [LARGE]
    assert b"".join(sinks.written) == LARGE
    assert max(map(len, sinks.written)) <= BLOCK_BYTES
    assert (sinks.opened, sinks.open) == (1, 0)


async def test_client_that_waits_gets_a_continuation(mail: HookedMail, served: ImapServices, sinks: SinkLog) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send("a APPEND {5}\r\n")
        assert await client.line() == "+ Send the literal"
        await client.send(f'INBOX (\\Seen $Fine) "31-Dec-2019 23:00:00 -0100" {{{len(LARGE)}}}\r\n')
        assert await client.line() == "+ Send the literal"
        assert not sinks.written
        await client.send(LARGE + b"\r\n")
        assert (await client.line()).startswith("a OK [APPENDUID ")
    [message] = (await mail.open_mailbox(await mail.folder("alice", INBOX))).messages.values()
    assert message.flags == {"\\Seen", "$Fine"}
    assert message.received_ms == 1_577_836_800_000


@in_the_core
async def test_only_larger_literals_come_in_pieces(served: ImapServices, sinks: SinkLog) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        for size, whole in ((WHOLE_LITERAL_BYTES, True), (WHOLE_LITERAL_BYTES + 1, False)):
            sinks.written.clear()
            await client.send(append_command(b"x" * size))
            assert (await client.line()).startswith("a OK")
            assert (len(sinks.written) <= 1) == whole


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("APPEND nowhere", "a NO [TRYCREATE] "),
        ("APPEND INBOX (\\Odd)", "a NO [CANNOT] "),
        ("APPEND", "a BAD Expected "),
        ("APPEND INBOX INBOX", "a BAD Expected "),
        ("LOGIN alice", "a BAD Only the message of an APPEND may be a literal of 65537 bytes"),
        ("SEARCH TEXT", "a BAD Only the message of an APPEND may be a literal of 65537 bytes"),
        ("SELECT", "a BAD Only the message of an APPEND may be a literal of 65537 bytes"),
        ('LIST ""', "a BAD Only the message of an APPEND may be a literal of 65537 bytes"),
        ("FROB", "a BAD Unknown command FROB"),
    ],
)
async def test_errors_are_told_before_the_literal_is_sent(
    served: ImapServices, sinks: SinkLog, command: str, answer: str
) -> None:
    size = WHOLE_LITERAL_BYTES + 1
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(f"a {command} {{{size}}}\r\n")
        assert (await client.line()).startswith(answer)
        await client.send(f"a {command} {{{size}+}}\r\n".encode() + b"b LOGOUT\r\n".ljust(size) + b"\r\n")
        assert (await client.line()).startswith(answer)
        assert await client.run("NOOP") == ["t OK Nothing done"]
    assert sinks.opened == 0


@pytest.mark.parametrize(
    ("rest", "answer"),
    [
        (b" foo\r\n", "a BAD Expected another message, or the end of the command, after the message"),
        (b" foo {3+}\r\nfoo\r\n", "a BAD Expected another message, or the end of the command, after the message"),
        (b" foo {3}\r\n", "a BAD Expected another message, or the end of the command, after the message"),
        (b" foo {70000}\r\n", "a BAD Expected another message, or the end of the command, after the message"),
        (
            b" foo {70000+}\r\n" + b"x" * 70_000 + b" {3}\r\n",
            "a BAD Expected another message, or the end of the command, after the message",
        ),
        (b" {999999999}\r\n", "a NO [TOOBIG] a literal of 999999999 bytes"),
    ],
)
async def test_arguments_after_the_message_are_refused(
    mail: HookedMail, served: ImapServices, sinks: SinkLog, rest: bytes, answer: str
) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(append_command(LARGE)[:-2] + rest)
        assert (await client.line()).startswith(answer)
        assert await client.run("NOOP") == ["t OK Nothing done"]
    assert await mail.bodies("alice") == []
    assert (sinks.opened, sinks.open) == (1, 0)


async def test_endless_line_after_the_message_ends_the_connection(
    mail: HookedMail, served: ImapServices, sinks: SinkLog
) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(append_command(LARGE)[:-2] + b"x" * 70_000)
        assert (await client.line()).startswith("a BAD [TOOBIG] the command's text is longer than")
        assert (await client.line()).startswith("* BYE ")
        assert await client.line() == ""
    assert await mail.bodies("alice") == []
    assert (sinks.opened, sinks.open) == (1, 0)


@in_the_core
@pytest.mark.parametrize("at", [0, 1, 7, None])
@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (DiskFullError("the disk is full"), "a NO [OVERQUOTA] the disk is full"),
        (UnavailableError("later"), "a NO [UNAVAILABLE] later"),
        (MessageTooLargeError("too large"), "a NO [TOOBIG] too large"),
    ],
)
async def test_error_of_the_store_is_told_after_the_message(
    mail: HookedMail, served: ImapServices, at: int | None, error: MailError, answer: str
) -> None:
    mail.sinks = sinks = SinkLog(fails_at=at, fails_at_end=at is None, error=error)
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(append_command(LARGE)[:-4])
        await trio.testing.wait_all_tasks_blocked()
        assert not client.received
        assert sinks.open == (0 if at is not None else 1)
        await client.send(LARGE[-2:] + b"\r\nb NOOP\r\n")
        assert await client.line() == answer
        assert (await client.line()).startswith("b OK")
    assert (sinks.opened, sinks.open, sinks.failures) == (1, 0, 1)
    assert await mail.bodies("alice") == []


async def test_client_that_leaves_within_a_message_stores_nothing(
    mail: HookedMail, served: ImapServices, sinks: SinkLog
) -> None:
    for end in (len(LARGE) // 2, -3, -2, -1):
        async with connected(served) as client:
            await client.log_in("alice")
            await client.send(append_command(LARGE)[:end])
            await trio.testing.wait_all_tasks_blocked()
            assert sinks.open == 1
        await trio.testing.wait_all_tasks_blocked()
        assert sinks.open == 0
    assert await mail.bodies("alice") == []


async def test_silence_within_a_message_ends_the_connection(
    served: ImapServices, sinks: SinkLog, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(append_command(LARGE)[:-100])
        await trio.sleep(29 * 60)
        assert sinks.open == 1
        assert not client.received
        await trio.sleep(2 * 60)
        assert (await client.line()).startswith("* BYE No command arrived for too long")
    assert sinks.open == 0
    assert autojump_clock.current_time() >= 31 * 60


@pytest.mark.long
async def test_message_that_takes_too_long_ends_the_connection(
    mail: HookedMail, served: ImapServices, sinks: SinkLog, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        data = append_command(LARGE)
        for part in (data[:-200], data[-200:]):  # slow, but within the limit
            await client.send(part)
            await trio.sleep(20 * 60)
        assert (await client.line()).startswith("a OK")
        await client.send(data[:-200])
        await trio.sleep(20 * 60)
        await client.send(data[-200:-100])
        await trio.sleep(9 * 60)
        assert not client.received
        await trio.sleep(2 * 60)
        assert await client.line() == "* BYE Your message did not arrive in time; connect again"
        assert autojump_clock.current_time() < 72 * 60
    assert sinks.open == 0
    assert await mail.bodies("alice") == [LARGE]


async def test_revoked_user_saves_no_message(mail: HookedMail, served: ImapServices, sinks: SinkLog) -> None:
    users = RevocableUsers()
    async with connected(dataclasses.replace(served, users=users)) as client:
        await client.log_in("alice")
        await client.send(append_command(LARGE)[:-2])
        await trio.testing.wait_all_tasks_blocked()
        users.revoked = True
        await client.send(b"\r\n")
        assert (await client.line()).startswith("* BYE Your password was changed")
    assert await mail.bodies("alice") == []
    assert sinks.open == 0


@dataclasses.dataclass
class RevocableUsers(ReversedNameUsers):
    revoked: bool = False

    def holds(self, login: Login) -> bool:
        return not self.revoked and super().holds(login)


async def test_large_literal_does_not_end_idle(served: ImapServices) -> None:
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.send(b"a IDLE\r\n")
        assert (await client.line()).startswith("+")
        await client.send(b"DONE {70000}\r\n")
        assert await client.line() == "+ Send the literal"
        await client.send(b"x" * 70_000 + b"\r\n")
        assert await client.line() == "a BAD Expected DONE"
        assert await client.run("NOOP") == ["t OK Nothing done"]


async def test_connection_buffers_little_of_a_large_message(served: ImapServices, sinks: SinkLog) -> None:
    """The read-ahead and the pieces that the connection passes on are bounded."""
    ours, theirs = trio.testing.memory_stream_pair()
    connection = Connection(theirs, LOOPBACK, secure=False, login_s=60, idle_s=1800)
    connection.welcome(served.max_message_bytes)
    limits = connection._framer.limits
    assert (limits.whole, limits.literals_total) == (WHOLE_LITERAL_BYTES, 16 * WHOLE_LITERAL_BYTES)
    await ours.send_all(append_command(LARGE))
    given = 0
    while given < len(LARGE):
        event = await connection.next_event()
        given += len(event.data) if isinstance(event, LiteralChunk) else 0
        assert len(connection._framer._buffer) <= BLOCK_BYTES
    assert not sinks.opened
