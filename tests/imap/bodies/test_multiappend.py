"""APPEND of several messages (RFC 3502): all of them, or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import product

import pytest

from replicator.errors import UnavailableError
from replicator.imap.services import ImapServices
from replicator.imap.wire.connection import MAX_LITERALS, WHOLE_LITERAL_BYTES
from replicator.replication.cluster_mail_store import saving
from replicator.replication.writes.uid_retry import Added, AddRequest
from tests.imap.client import Client, connected
from tests.one_node import HookedMail, SinkLog

SIZES = (20, WHOLE_LITERAL_BYTES, WHOLE_LITERAL_BYTES + 1)


def message(number: int, size: int) -> bytes:
    return (b"Subject: %d\r\n\r\n" % number).ljust(size, b"x")


async def append(client: Client, messages: list[bytes], *, waits: Callable[[int], bool]) -> str:
    """Append the messages, waiting for permission where the test says so, and return the answer."""
    await client.send("a APPEND INBOX")
    for number, body in enumerate(messages):
        sign = "" if waits(number) else "+"
        await client.send(f" (\\Seen $K{number}) {{{len(body)}{sign}}}\r\n")
        if waits(number) and (line := await client.line()) != "+ Send the literal":
            return line
        await client.send(body)
    await client.send("\r\n")
    return await client.line()


@pytest.mark.parametrize("sizes", [*product(SIZES, repeat=2)])
@pytest.mark.parametrize("waiting", range(4))
async def test_all_messages_are_stored(
    mail: HookedMail, served: ImapServices, sizes: tuple[int, ...], waiting: int
) -> None:
    messages = [message(number, size) for number, size in enumerate((*sizes, 20))]
    async with connected(served) as client:
        await client.log_in("alice")
        answer = await append(client, messages, waits=lambda number: bool(waiting >> number & 1))
        uidvalidity = (await mail.folder("alice", "INBOX")).uidvalidity
        assert answer == f"a OK [APPENDUID {uidvalidity} 1:3] Appended"
        assert await client.run("NOOP") == ["t OK Nothing done"]
    assert await mail.bodies("alice") == messages
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    assert [row.flags for row in view.messages.values()] == [{"\\Seen", f"$K{number}"} for number in range(3)]


async def test_more_messages_than_a_frame_holds_whole(mail: HookedMail, served: ImapServices) -> None:
    messages = [message(number, 20_000) for number in range(100)]
    async with connected(served) as client:
        await client.log_in("alice")
        assert (await append(client, messages, waits=lambda _: False)).startswith("a OK [APPENDUID ")
    assert await mail.bodies("alice") == messages


async def test_failure_takes_back_what_is_there(
    mail: HookedMail, served: ImapServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "SAVE_ALL_BYTES", 1)
    add, added = mail._uid_retry.add, 0

    async def fail_the_third(operation: AddRequest) -> Added:
        nonlocal added
        added += 1
        if added == 3:
            raise UnavailableError("later")
        return await add(operation)

    monkeypatch.setattr(mail._uid_retry, "add", fail_the_third)
    async with connected(served) as client:
        await client.log_in("alice")
        messages = [message(number, 20) for number in range(4)]
        assert await append(client, messages, waits=lambda _: False) == "a NO [UNAVAILABLE] later"
        assert added == 3
        assert await mail.bodies("alice") == []
        assert (await append(client, messages, waits=lambda _: False)).endswith(" 3:6] Appended")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sign", ["", "+"])
@pytest.mark.parametrize(
    ("rest", "answer"),
    [
        ("(\\Odd) {5+}\r\n12345", "a NO [CANNOT] '\\Odd' is not an IMAP flag"),
        ("{0+}\r\n", "a NO An empty message cancels an APPEND of several messages"),
        ("{x", "a BAD Expected another message, or the end of the command"),
        ("{5+}\r\n12345 x", "a BAD Expected another message, or the end of the command"),
        ("{1000001}", "a NO [TOOBIG] a literal of 1000001 bytes"),
        ("{999999}", "a NO [LIMIT] The messages of an APPEND may have 1000000 bytes together"),
    ],
)
async def test_one_bad_message_leaves_out_all(  # noqa: PLR0917 - fixtures and parameters
    served: ImapServices, mail: HookedMail, size: int, sign: str, rest: str, answer: str
) -> None:
    mail.sinks = sinks = SinkLog()
    async with connected(dataclasses.replace(served, max_message_bytes=1_000_000)) as client:
        await client.log_in("alice")
        await client.send(f"a APPEND INBOX {{{size}{sign}}}\r\n")
        if not sign:
            assert await client.line() == "+ Send the literal"
        await client.send(message(1, size) + f" {rest}\r\n".encode())
        said = await client.line()
        assert said.startswith(answer) or (answer[:5] == said[:5] == "a BAD" and " at column " in said)
        assert await client.run("NOOP") == ["t OK Nothing done"]
    assert await mail.bodies("alice") == []
    assert sinks.open == 0


async def test_number_of_messages_is_bounded(mail: HookedMail, served: ImapServices) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(b"a APPEND INBOX" + b" {1+}\r\nx" * MAX_LITERALS + b"\r\n")
        assert (await client.line()).startswith("a OK")
        await client.send(b"a APPEND INBOX" + b" {1+}\r\nx" * MAX_LITERALS + b" {1}\r\n")
        assert (await client.line()).startswith(f"a NO [TOOBIG] more than {MAX_LITERALS} literals in one command")
    assert len(await mail.bodies("alice")) == MAX_LITERALS


async def test_limit_is_announced(served: ImapServices) -> None:
    """RFC 7889 sections 3.1 and 3.2."""
    async with connected(served) as client:
        await client.log_in("alice")
        capabilities, _ = await client.run("CAPABILITY")
        assert {"MULTIAPPEND", f"APPENDLIMIT={served.max_message_bytes}"} <= set(capabilities.split())
        status, _ = await client.run("STATUS INBOX (APPENDLIMIT MESSAGES)")
        assert status == f'* STATUS "INBOX" (APPENDLIMIT {served.max_message_bytes} MESSAGES 0)'
