from __future__ import annotations

import dataclasses
import logging
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
import trio.testing

from protocol.values import UidSet
from replicator.errors import (
    ContentUnavailableError,
    DiskFullError,
    DurabilityError,
    FolderExistsError,
    FolderNotFoundError,
    InvalidNameError,
    MailError,
    MessageTooLargeError,
    UnavailableError,
)
from replicator.imap.limits import LARGE_AT_ONCE, LARGE_BYTES, LARGE_PER_USER, LARGE_TIMEOUT_S, Connections
from replicator.imap.refusals import code_of
from replicator.imap.search_keys import BadCharsetError
from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from replicator.mailstore import Folder, NewMessage
from tests.imap.client import LOOPBACK, Client, OneUser, connected
from tests.one_node import Gate, HookedMail, failing

AWAY = "192.0.2.7"


async def fill(mail: HookedMail, messages: int = 1, text: bytes = b"Subject: x\r\n\r\nHello\r\n") -> Folder:
    inbox = await mail.folder("alice", "INBOX")
    for _ in range(messages):
        await mail.save(inbox, NewMessage(text))
    return inbox


# ---- privacy ---------------------------------------------------------------------------------------------------


async def test_a_password_in_the_open_from_elsewhere_is_refused(served: ImapServices) -> None:
    async with connected(served, address=AWAY) as client:
        assert "LOGINDISABLED" in (await client.run("CAPABILITY"))[0]
        assert "AUTH=PLAIN" not in (await client.run("CAPABILITY"))[0]
        assert (await client.run("LOGIN alice ecila"))[-1].startswith("t NO [PRIVACYREQUIRED]")
        assert (await client.run("AUTHENTICATE PLAIN"))[-1].startswith("t NO [PRIVACYREQUIRED]")
    assert isinstance(served.users, OneUser)
    assert not served.users.asked


async def test_under_tls_anybody_may_log_in(served: ImapServices) -> None:
    async with connected(served, address=AWAY, secure=True) as client:
        await client.log_in("alice")
    assert isinstance(served.users, OneUser)
    assert served.users.asked == [("alice", AWAY)]


# ---- limits ----------------------------------------------------------------------------------------------------


async def test_an_append_too_large_is_refused_before_it_is_sent(served: ImapServices) -> None:
    served = dataclasses.replace(served, max_message_bytes=100)
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send("a APPEND INBOX {101}\r\n")
        assert (await client.line()).startswith("a NO [TOOBIG] ")
        assert (await client.run("NOOP"))[-1].startswith("t OK")
        await client.send("b APPEND INBOX {101+}\r\n")
        assert (await client.line()).startswith("b NO [TOOBIG] ")
        assert (await client.line()).startswith("* BYE ")
        assert await client.line() == ""


@pytest.mark.parametrize(
    "hostile",
    [b"x" * 100_000, b"a LOGIN {5000+}\r\n", b"a LOGIN {4}\r\nabcd {99999999999999999999}\r\n", b"a NOOP " * 9000],
)
async def test_a_stranger_cannot_fill_the_memory(served: ImapServices, hostile: bytes) -> None:
    async with connected(served) as client:
        await client.send(hostile)
        await client.send(b"z LOGOUT\r\n")
        lines = await client.until("z")
        assert any(" BAD " in line for line in lines)
        assert lines[-1] == "" or lines[-1].startswith("z OK")


@pytest.mark.parametrize("command", ["AUTHENTICATE PLAIN", "IDLE"])
async def test_endless_words_within_a_command_end_the_connection(served: ImapServices, command: str) -> None:
    async with connected(served) as client:
        if command == "IDLE":
            await client.log_in("alice", "INBOX")
        await client.send(f"a {command}\r\n")
        assert (await client.line()).startswith("+")
        await client.send(b"x" * 100_000)
        assert (await client.line()).startswith("* BYE the command's text is longer than")
        assert await client.line() == ""


async def test_a_name_with_line_ends_is_quoted_back_in_one_line(served: ImapServices) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        assert len(await client.run("SELECT &AA0ACg-t")) == 1


async def test_commands_that_are_none_end_the_connection_after_a_while(served: ImapServices) -> None:
    async with connected(served) as client:
        for _ in range(9):
            assert (await client.run("FROB"))[-1].startswith("t BAD Expected the name of a command")
        assert (await client.run("NOOP"))[-1].startswith("t OK")
        await client.send(b"GET / HTTP/1.1\r\n" * 10)
        lines = await client.until("nobody")
        assert len(lines) == 12
        assert lines[-2].startswith("* BYE ")


async def test_guessing_ends_the_connection(served: ImapServices) -> None:
    async with connected(served) as client:
        for _ in range(4):
            assert len(await client.run("LOGIN alice guess")) == 1
        bye, no = await client.run("LOGIN alice guess")
        assert bye.startswith("* BYE ")
        assert no.startswith("t NO [AUTHENTICATIONFAILED]")
        assert await client.line() == ""


async def test_a_user_has_so_many_connections_and_no_more(served: ImapServices) -> None:
    served = dataclasses.replace(served, connections=Connections(limit=3, limit_per_user=1))
    async with connected(served) as first, connected(served) as second, connected(served):
        await first.log_in("alice")
        assert (await second.run("LOGIN alice ecila"))[-1].startswith("t NO [LIMIT] ")
        await second.log_in("bob")
        ours, theirs = trio.testing.memory_stream_pair()
        await serve_imap(theirs, served, address=LOOPBACK)
        assert (await Client(ours).line()).startswith("* BYE [UNAVAILABLE] ")
    async with connected(served) as again:
        await again.log_in("alice")


async def refused(served: ImapServices, address: str) -> bool:
    """Whether another connection from there is turned away."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address=address))
        greeting = await Client(ours).line()
        nursery.cancel_scope.cancel()
    return greeting.startswith("* BYE [UNAVAILABLE] Too many connections")


async def test_strangers_have_a_part_of_all_places_and_of_that_a_part_each(served: ImapServices) -> None:
    few = Connections(limit_strangers=6, limit_strangers_per_address=2, limit_strangers_on_loopback=3)
    served = dataclasses.replace(served, connections=few)
    async with AsyncExitStack() as open_ones:

        async def connect(address: str) -> Client:
            return await open_ones.enter_async_context(connected(served, address=address, secure=True))

        first = await connect("192.0.2.1")
        await connect("::ffff:192.0.2.1")
        assert await refused(served, "192.0.2.1")
        await connect("2001:db8::1")
        await connect("2001:db8::2")
        assert await refused(served, "2001:db8::3")
        await connect(LOOPBACK)
        assert not await refused(served, LOOPBACK)
        await connect("192.0.2.2")
        assert await refused(served, "192.0.2.3")
        await first.log_in("alice")
        assert not await refused(served, "192.0.2.3")
        assert not await refused(served, "192.0.2.1")
        assert (few.open, few.strangers.total(), few.users) == (6, 5, {"alice": 1})
    assert (few.open, few.strangers, few.users) == (0, {}, {})


def literal(size: int) -> bytes:
    return b"a APPEND INBOX {%d+}\r\n" % size + b"x" * size


async def test_large_appends_take_turns_and_small_ones_pass(mail: HookedMail, served: ImapServices) -> None:
    opening = trio.Event()
    mail.before_change = gate = Gate(open=opening)
    async with AsyncExitStack() as open_ones:
        clients = [await open_ones.enter_async_context(connected(served)) for _ in range(4 * LARGE_AT_ONCE)]
        for number, client in enumerate(clients):
            await client.log_in(f"user{number % LARGE_AT_ONCE}")
        for client in clients[::LARGE_AT_ONCE]:  # those of one user
            await client.send(literal(LARGE_BYTES + 1))
            await trio.testing.wait_all_tasks_blocked()
            await client.send(b"\r\n")
        await trio.testing.wait_all_tasks_blocked()
        assert gate.waiting == LARGE_PER_USER
        others = [client for number, client in enumerate(clients) if number % LARGE_AT_ONCE]
        for client in others:
            await client.send(literal(LARGE_BYTES + 1) + b"\r\n")
        await trio.testing.wait_all_tasks_blocked()
        assert gate.waiting == LARGE_AT_ONCE
        await others[0].stream.aclose()
        opening.set()
        small = await open_ones.enter_async_context(connected(served))
        await small.log_in("user0")
        await small.send(literal(LARGE_BYTES) + b"\r\n")
        assert (await small.line()).startswith("a OK")
        for client in [*clients[::LARGE_AT_ONCE], *others[1:]]:
            assert (await client.line()).startswith("a OK")
    assert gate.most_waiting <= LARGE_AT_ONCE + 1


async def test_whoever_is_slow_with_a_large_append_gives_the_turn_back(
    served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(served) as slow, connected(served) as slow_too, connected(served) as other:
        for client in (slow, slow_too, other):
            await client.log_in("alice")
        began = autojump_clock.current_time()
        for client in (slow, slow_too):
            await client.send(literal(LARGE_BYTES + 1)[:-1])
        await trio.testing.wait_all_tasks_blocked()
        await other.send(literal(LARGE_BYTES + 1) + b"\r\n")
        await trio.sleep(LARGE_TIMEOUT_S - 1)
        assert not other.received
        assert (await other.line()).startswith("a OK")
        assert (await slow.line()).startswith("* BYE You said nothing for too long")
        assert autojump_clock.current_time() - began < LARGE_TIMEOUT_S + 1


async def test_a_turn_comes_back_however_a_large_append_ends(mail: HookedMail, served: ImapServices) -> None:
    for ending in range(2 * LARGE_AT_ONCE):
        async with connected(served) as client:
            await client.log_in("alice")
            await client.send(literal(LARGE_BYTES + 1))
            await trio.testing.wait_all_tasks_blocked()
            if ending % 2:
                await client.send(b" and more\r\n")
                assert (await client.line()).startswith("a BAD")
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(literal(LARGE_BYTES + 1) + b"\r\n")
        assert (await client.line()).startswith("a OK")
    assert len(await mail.texts("alice")) == 1


# ---- deadlines -------------------------------------------------------------------------------------------------


async def test_a_stranger_has_a_minute(served: ImapServices, autojump_clock: trio.testing.MockClock) -> None:
    began = autojump_clock.current_time()
    async with connected(served) as client:
        for _ in range(5):
            await trio.sleep(10)
            assert (await client.run("NOOP"))[-1].startswith("t OK")
        await trio.sleep(9)
        await client.send("a NOOP\r\n")
        await trio.sleep(2)
        assert (await client.line()).startswith("a OK")
        assert (await client.line()).startswith("* BYE ")
    assert autojump_clock.current_time() - began < 65


async def test_silence_of_half_an_hour_ends_the_connection_and_less_does_not(
    served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    began = autojump_clock.current_time()
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await trio.sleep(29 * 60)
        await client.send("a IDLE\r\n")
        assert await client.line() == "+ idling"
        await trio.sleep(29 * 60)
        await client.send("DONE\r\n")
        assert (await client.line()).startswith("a OK")
        await trio.sleep(31 * 60)
        assert (await client.line()).startswith("* BYE ")
        assert await client.line() == ""
    assert autojump_clock.current_time() - began < 90 * 60


async def test_a_client_that_does_not_read_is_let_go(
    mail: HookedMail, served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    began = autojump_clock.current_time()
    inbox = await fill(mail, text=b"x" * 1_000_000)
    ours, theirs = trio.testing.lockstep_stream_pair()
    client = Client(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address=LOOPBACK))
        await client.line()
        await client.log_in("alice", "INBOX")
        await client.send("a FETCH 1 BODY.PEEK[]\r\n")
    assert 60 <= autojump_clock.current_time() - began < 70
    assert not (await mail.open_mailbox(inbox)).subscribers


async def test_whoever_is_connected_hears_that_the_node_goes_down(served: ImapServices) -> None:
    streams = []
    async with trio.open_nursery() as nursery:
        for said in ("", "i IDLE\r\n"):
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(partial(serve_imap, theirs, served, address=LOOPBACK))
            streams.append(Client(ours))
            await streams[-1].line()
            await streams[-1].log_in("alice", "INBOX")
            await streams[-1].send(said)
        assert await streams[1].line() == "+ idling"
        nursery.cancel_scope.cancel()
    for client in streams:
        assert await client.line() == "* BYE [UNAVAILABLE] dc1 is going down; connect again"
        assert await client.line() == ""


async def test_nobody_is_waited_for_when_the_node_goes_down(
    mail: HookedMail, served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    await fill(mail, text=b"x" * 1_000_000)
    ours, theirs = trio.testing.lockstep_stream_pair()
    client = Client(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address=LOOPBACK))
        await client.line()
        await client.log_in("alice", "INBOX")
        await client.send("a FETCH 1 BODY.PEEK[]\r\n")
        assert (await ours.receive_some(100)).startswith(b"* 1 FETCH")
        before = autojump_clock.current_time()
        nursery.cancel_scope.cancel()
    assert autojump_clock.current_time() - before <= 2
    rest = bytearray()
    async for data in ours:
        rest += data
    assert b"BYE" not in rest  # within a literal it would be part of the message


# ---- the store fails -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FolderNotFoundError, "NONEXISTENT"),
        (FolderExistsError, "ALREADYEXISTS"),
        (InvalidNameError, "CANNOT"),
        (MessageTooLargeError, "TOOBIG"),
        (ContentUnavailableError, "UNAVAILABLE"),
        (DurabilityError, "UNAVAILABLE"),
        (UnavailableError, "UNAVAILABLE"),
        (DiskFullError, "OVERQUOTA"),
        (BadCharsetError, "BADCHARSET (US-ASCII UTF-8)"),
        (MailError, None),
    ],
)
def test_codes(error: type[MailError], code: str | None) -> None:
    assert code_of(error("why")) == code


async def test_a_full_disk_refuses_writing_and_lets_read(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail)
    mail.before_change = failing(DiskFullError("The disk is full; make room"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.send("a APPEND INBOX {1+}\r\nx\r\n")
        assert await client.line() == "a NO [OVERQUOTA] The disk is full; make room"
        assert (await client.run("STORE 1 +FLAGS \\Seen"))[-1].startswith("t NO [OVERQUOTA] ")
        lines = await client.run("FETCH 1 (FLAGS BODY[TEXT])")
        assert lines == ["* 1 FETCH (FLAGS () BODY[TEXT] {7}", "Hello", ")", "t OK Fetched"]


async def test_a_message_without_text_spoils_no_other(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail)
    inbox = await mail.folder("alice", "INBOX")
    await mail.save(inbox, NewMessage(b"lost"))
    view = await mail.open_mailbox(inbox)
    await mail.lose_text(view.messages[2])
    await mail.save(inbox, NewMessage(b"third"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        lines = await client.run("UID FETCH 1:* BODY.PEEK[TEXT]")
        assert [line for line in lines if line.startswith("* ")] == [
            "* 1 FETCH (UID 1 BODY[TEXT] {7}",
            '* 3 FETCH (UID 3 BODY[TEXT] "third")',
        ]
        assert lines[-1].startswith("t NO [UNAVAILABLE] ")
        assert (await client.run("FETCH 2 RFC822.SIZE"))[0] == "* 2 FETCH (RFC822.SIZE 4)"


async def test_a_defect_ends_one_connection(
    mail: HookedMail, served: ImapServices, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down(user: str) -> None:
        raise RuntimeError(f"a defect in {user}")

    await fill(mail)
    async with connected(served) as other, connected(served) as client:
        await client.log_in("alice", "INBOX")
        mail.before_change = break_down
        with caplog.at_level(logging.CRITICAL):
            lines = await client.run("STORE 1 +FLAGS (x)")
        assert lines[-2].startswith("* BYE [SERVERBUG] ")
        assert lines[-1] == ""
        assert (await other.run("NOOP"))[-1].startswith("t OK")


async def test_expunged_elsewhere_during_a_fetch_is_left_out(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail, 3)
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await mail.expunge(view, UidSet.of([2]))
        assert await client.run("UID FETCH 1:* FLAGS") == [
            "* 1 FETCH (UID 1 FLAGS (\\Recent))",
            "* 3 FETCH (UID 3 FLAGS (\\Recent))",
            "* 2 EXPUNGE",
            "t OK Fetched",
        ]


async def test_a_mailbox_deleted_under_a_session_ends_it(mail: HookedMail, served: ImapServices) -> None:
    await mail.create_folder("alice", "Short")
    async with connected(served) as idle, connected(served) as busy:
        await idle.log_in("alice", "Short")
        await idle.send("i IDLE\r\n")
        assert await idle.line() == "+ idling"
        await busy.log_in("alice", "Short")
        await mail.delete_folder("alice", "Short")
        assert await idle.line() == "* BYE [NONEXISTENT] Mailbox 'Short' was deleted"
        assert await idle.line() == ""
        assert (await busy.run("NOOP"))[-2] == "* BYE [NONEXISTENT] Mailbox 'Short' was deleted"


async def test_what_idle_has_begun_to_say_is_said_whole(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail)
    ours, theirs = trio.testing.lockstep_stream_pair()
    client = Client(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address=LOOPBACK))
        await client.line()
        await client.log_in("alice", "INBOX")
        await client.send("i IDLE\r\n")
        assert await client.line() == "+ idling"
        await mail.save(await mail.folder("alice", "INBOX"), NewMessage(b"new"))
        client.received += await ours.receive_some(1)  # the rest waits in the server
        await client.send("DONE\r\n")
        assert await client.until("i") == ["* 2 EXISTS", "* 2 RECENT", "i OK No longer idle"]
        await ours.aclose()


async def test_an_expunge_removes_only_what_its_author_saw(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail, 1)
    inbox = await mail.folder("alice", "INBOX")
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await mail.save(inbox, NewMessage(b"unseen", frozenset({"\\Deleted"})))
        assert "* 1 EXPUNGE" not in await client.run("EXPUNGE")
    assert list((await mail.open_mailbox(inbox)).messages) == [1, 2]


async def test_pipelined_commands_are_answered_in_order(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail, 3)
    async with connected(served) as client:
        await client.send("a LOGIN alice ecila\r\nb SELECT INBOX\r\nc IDLE\r\nDONE\r\nd FETCH 2 UID\r\ne LOGOUT\r\n")
        lines = await client.until("e")
        assert [line[0] for line in lines if line[0] not in "*+"] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("size", [1, 3, 64])
async def test_bytes_may_come_in_any_pieces(served: ImapServices, size: int) -> None:
    text = b"a LOGIN {5}\r\nalice {5+}\r\necila\r\nb APPEND inbox {4+}\r\n\r\n\n\r\r\nc SELECT INBOX\nd LOGOUT\r\n"
    async with connected(served) as client:
        for start in range(0, len(text), size):
            await client.send(text[start : start + size])
        lines = await client.until("d")
        assert [line[:4] for line in lines if line[0] not in "*+"] == ["a OK", "b OK", "c OK", "d OK"]
