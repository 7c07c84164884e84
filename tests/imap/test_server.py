from __future__ import annotations

import logging
from functools import partial

import pytest
import trio
import trio.testing

from protocol.values import UidSet
from replicator.errors import (
    ContentUnavailableError,
    DiskFullError,
    DurabilityError,
    FlagLimitError,
    FolderExistsError,
    FolderNotFoundError,
    InvalidFlagError,
    InvalidNameError,
    MailError,
    MessageTooLargeError,
    UnavailableError,
)
from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from replicator.imap.wire.refusals import code_of
from replicator.imap.wire.search_keys import BadCharsetError
from replicator.mail.mailstore import NewMessage
from tests.imap.client import LOOPBACK, Client, ReversedNameUsers, connected, fill
from tests.one_node import HookedMail, failing

REMOTE_ADDRESS = "192.0.2.7"


# ---- encryption ---------------------------------------------------------------------------------------------------


async def test_unencrypted_remote_login_is_refused(served: ImapServices) -> None:
    async with connected(served, address=REMOTE_ADDRESS) as client:
        assert "LOGINDISABLED" in (await client.run("CAPABILITY"))[0]
        assert "AUTH=PLAIN" not in (await client.run("CAPABILITY"))[0]
        assert (await client.run("LOGIN alice ecila"))[-1].startswith("t NO [PRIVACYREQUIRED]")
        assert (await client.run("AUTHENTICATE PLAIN"))[-1].startswith("t NO [PRIVACYREQUIRED]")
    assert isinstance(served.users, ReversedNameUsers)
    assert not served.users.verified


async def test_remote_login_is_allowed_under_tls(served: ImapServices) -> None:
    async with connected(served, address=REMOTE_ADDRESS, secure=True) as client:
        await client.log_in("alice")
    assert isinstance(served.users, ReversedNameUsers)
    assert served.users.verified == [("alice", REMOTE_ADDRESS)]


# ---- deadlines -------------------------------------------------------------------------------------------------


async def test_client_has_a_minute_to_log_in(served: ImapServices, autojump_clock: trio.testing.MockClock) -> None:
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


@pytest.mark.long
async def test_half_an_hour_of_silence_ends_the_connection(
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
        assert await client.until("a") == ["* OK Still here"] * 14 + ["a OK IDLE ended"]
        await trio.sleep(31 * 60)
        assert (await client.line()).startswith("* BYE ")
        assert await client.line() == ""
    assert autojump_clock.current_time() - began < 90 * 60


@pytest.mark.parametrize("mailbox", [None, "INBOX"])
async def test_client_in_idle_hears_of_the_node_every_two_minutes(
    served: ImapServices, autojump_clock: trio.testing.MockClock, mailbox: str | None
) -> None:
    began = autojump_clock.current_time()
    async with connected(served) as client:
        await client.log_in("alice", mailbox)
        await client.send("a IDLE\r\n")
        assert await client.line() == "+ idling"
        for number in (1, 2, 3):
            with trio.fail_after(150):
                while not (line := await silent_line(client)):
                    pass
            assert line == "* OK Still here"
            assert autojump_clock.current_time() - began == pytest.approx(120 * number)
        await client.send("DONE\r\n")
        assert await client.until("a") == ["a OK IDLE ended"]


async def silent_line(client: Client) -> str:
    """Return the next line; "" if none comes within ten seconds of virtual time."""
    with trio.move_on_after(10):
        return await client.line()
    return ""


async def test_client_that_does_not_read_is_disconnected(
    mail: HookedMail, served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    began = autojump_clock.current_time()
    inbox = await fill(mail, body=b"x" * 1_000_000)
    ours, theirs = trio.testing.lockstep_stream_pair()
    client = Client(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address=LOOPBACK))
        await client.line()
        await client.log_in("alice", "INBOX")
        await client.send("a FETCH 1 BODY.PEEK[]\r\n")
    assert 60 <= autojump_clock.current_time() - began < 70
    assert not (await mail.open_mailbox(inbox)).subscribers


async def test_shutdown_is_announced_to_connected_clients(served: ImapServices) -> None:
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
        assert await client.line() == "* BYE [UNAVAILABLE] dc1 is shutting down; connect again"
        assert await client.line() == ""


async def test_shutdown_does_not_wait_for_a_slow_client(
    mail: HookedMail, served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    await fill(mail, body=b"x" * 1_000_000)
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


# ---- failures of the store -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FolderNotFoundError, "NONEXISTENT"),
        (FolderExistsError, "ALREADYEXISTS"),
        (InvalidNameError, "CANNOT"),
        (InvalidFlagError, "CANNOT"),
        (FlagLimitError, "LIMIT"),
        (MessageTooLargeError, "TOOBIG"),
        (ContentUnavailableError, "UNAVAILABLE"),
        (DurabilityError, "UNAVAILABLE"),
        (UnavailableError, "UNAVAILABLE"),
        (DiskFullError, "OVERQUOTA"),
        (BadCharsetError, "BADCHARSET (US-ASCII UTF-8)"),
        (MailError, None),
    ],
)
def test_errors_have_their_response_codes(error: type[MailError], code: str | None) -> None:
    assert code_of(error("why")) == code


async def test_full_disk_refuses_writes_and_allows_reads(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail)
    mail.before_change = failing(DiskFullError("The disk is full; make room"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.send("a APPEND INBOX {1+}\r\nx\r\n")
        assert await client.line() == "a NO [OVERQUOTA] The disk is full; make room"
        assert (await client.run("STORE 1 +FLAGS \\Seen"))[-1].startswith("t NO [OVERQUOTA] ")
        lines = await client.run("FETCH 1 (FLAGS BODY[TEXT])")
        assert lines == ["* 1 FETCH (FLAGS () BODY[TEXT] {7}", "Hello", ")", "t OK Fetched"]


async def test_message_without_a_body_does_not_hide_others(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail)
    inbox = await mail.folder("alice", "INBOX")
    await mail.save(inbox, NewMessage(b"lost"))
    view = await mail.open_mailbox(inbox)
    await mail.lose_body(view.messages[2])
    await mail.save(inbox, NewMessage(b"third"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        lines = await client.run("UID FETCH 1:* BODY.PEEK[TEXT]")
        assert [line for line in lines if line.startswith("* ")] == [
            "* 1 FETCH (UID 1 BODY[TEXT] {7}",
            '* 3 FETCH (UID 3 BODY[TEXT] "third")',
        ]
        why = "no node in reach has the body of UID 2; try again later"
        assert lines[-1] == f"t NO [UNAVAILABLE] 1 message is left out: {why}"
        assert (await client.run("FETCH 2 RFC822.SIZE"))[0] == "* 2 FETCH (RFC822.SIZE 4)"


async def test_messages_that_could_not_be_sent_are_not_marked_as_seen(mail: HookedMail, served: ImapServices) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for number in range(30):
        await mail.save(inbox, NewMessage(f"{number}".encode()))
    view = await mail.open_mailbox(inbox)
    for uid in range(2, 30, 2):
        await mail.lose_body(view.messages[uid])
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        lines = await client.run("FETCH 1:* BODY[]")
        named = ",".join(str(uid) for uid in range(2, 22, 2))
        assert lines[-1].startswith("t NO [UNAVAILABLE] 14 messages are left out: ")
        assert f" UID {named},...;" in lines[-1]
        assert lines[:2] == [f'* {n} FETCH (BODY[] "{n - 1}" FLAGS (\\Seen \\Recent))' for n in (1, 3)]
        seen = await client.run("SEARCH SEEN")
        assert seen[0] == f"* SEARCH {' '.join(str(n) for n in (*range(1, 30, 2), 30))}"


async def test_defect_ends_only_its_connection(
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


async def test_message_expunged_elsewhere_is_left_out_of_a_fetch(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail, 3)
    view = await served.mail.open_mailbox(await mail.folder("alice", "INBOX"))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await served.mail.expunge(view, UidSet.of([2]))
        assert await client.run("UID FETCH 1:* FLAGS") == [
            "* 1 FETCH (UID 1 FLAGS (\\Recent))",
            "* 3 FETCH (UID 3 FLAGS (\\Recent))",
            "* 2 EXPUNGE",
            "t OK Fetched",
        ]


async def test_deletion_of_the_selected_mailbox_ends_the_session(mail: HookedMail, served: ImapServices) -> None:
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


async def test_idle_finishes_a_started_response(mail: HookedMail, served: ImapServices) -> None:
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
        assert await client.until("i") == ["* 2 EXISTS", "* 2 RECENT", "i OK IDLE ended"]
        await ours.aclose()


async def test_expunge_removes_only_messages_that_its_client_saw(mail: HookedMail, served: ImapServices) -> None:
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
async def test_input_may_arrive_in_any_pieces(served: ImapServices, size: int) -> None:
    text = b"a LOGIN {5}\r\nalice {5+}\r\necila\r\nb APPEND inbox {4+}\r\n\r\n\n\r\r\nc SELECT INBOX\nd LOGOUT\r\n"
    async with connected(served) as client:
        for start in range(0, len(text), size):
            await client.send(text[start : start + size])
        lines = await client.until("d")
        assert [line[:4] for line in lines if line[0] not in "*+"] == ["a OK", "b OK", "c OK", "d OK"]
