from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import TypeVar, cast

import pytest
import trio
import trio.testing

from protocol.units import KIB
from protocol.values import UidSet
from replicator.imap.matching import message_reader
from replicator.imap.matching.message_reader import LARGE_BODY_BYTES, Parsing
from replicator.imap.services import ImapServices
from replicator.imap.wire.connection import Connection
from replicator.mail.mailstore import BodyReader, NewMessage, read_all
from replicator.mime.skeleton import Gap, Skeleton
from tests.imap.client import connected, fill
from tests.imap.counted_threads import CountedThreads
from tests.one_node import HookedMail

T = TypeVar("T")

# All parts are too small to become attachments, so the whole body must be parsed to tell its structure.
LARGE = b"Subject: large\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n" + (
    b"--b\r\n\r\n" + b"Hello\r\n" * 1000 + b"\r\n"
) * (LARGE_BODY_BYTES // 6000)


async def test_large_bodies_are_parsed_in_a_thread(mail: HookedMail, served: ImapServices) -> None:
    threads = CountedThreads()
    inbox = await fill(mail, body=b"Subject: small\r\n\r\nHello\r\n")
    await mail.save(inbox, NewMessage(LARGE))
    served = dataclasses.replace(served, parsing=Parsing(run_in_thread=threads))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert "t OK Fetched" in await client.run("FETCH 1 (FLAGS BODYSTRUCTURE)")
        assert (await client.run("SEARCH 1 TEXT small"))[0] == "* SEARCH 1"
        assert threads.count == 0
        structure, *_ = await client.run("FETCH 2 (FLAGS BODYSTRUCTURE)")
        assert structure.startswith("* 2 FETCH (FLAGS (\\Recent) BODYSTRUCTURE ")
        assert threads.count == 1
        assert (await client.run("SEARCH TEXT large"))[0] == "* SEARCH 2"
        assert (await client.run("SEARCH TEXT small"))[0] == "* SEARCH 1"
        assert threads.count == 3


async def test_whole_body_is_not_copied_at_once() -> None:
    pieces = [bytes(64 * KIB)] * 512

    class Body:
        skeleton = Skeleton(b"", (Gap(0, sum(map(len, pieces)), 0),))

        async def read(self, _start: int, _end: int) -> AsyncGenerator[bytes, None]:
            for piece in pieces:
                await trio.lowlevel.checkpoint()
                yield bytes(bytearray(piece))  # a piece of its own, as from a disk

    body = cast("BodyReader", Body())
    tracemalloc.start()
    try:
        whole = await read_all(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert whole == b"".join(pieces)
    assert peak_bytes < 1.5 * len(whole)


async def test_every_one_of_many_small_parts_can_be_fetched(mail: HookedMail, served: ImapServices) -> None:
    parts = b"".join(b"--b\r\n\r\npart %d.\r\n" % number + b"Hello\r\n" * 1000 for number in range(1, 301))
    head = b"Subject: large\r\n\r\n"
    inbox = await mail.folder("alice", "INBOX")
    await mail.save(inbox, NewMessage(b"Content-Type: multipart/mixed; boundary=b\r\n" + head + parts + b"--b--\r\n"))
    assert (await mail.read_body((await mail.open_mailbox(inbox)).messages[1])).skeleton.header_only
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        structure = "".join(await client.run("FETCH 1 BODYSTRUCTURE"))
        assert structure.count('("TEXT" "PLAIN" ') == 300
        assert "part 299." in "".join(await client.run("FETCH 1 (BODY.PEEK[299]<0.9>)"))
        assert "part 299." in "".join(await client.run(f"FETCH 1 (BODY.PEEK[TEXT]<{parts.index(b'part 299.')}.9>)"))
        assert (await client.run('SEARCH BODY "part 299."'))[0] == "* SEARCH 1"
        assert (await client.run("SEARCH SUBJECT large BODY nothing"))[0] == "* SEARCH"


SMALL_PARTS = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"".join(
    b"--b\r\n\r\npart %d.\r\n" % number + b"Hello\r\n" * 1000 for number in range(1, 301)
)
HUGE_PART = SMALL_PARTS + b"--b\r\n\r\n" + b"0123456789abcdef\r\n" * 200_000 + b"--b--\r\n"


@pytest.mark.parametrize("command", ["FETCH 1 BODYSTRUCTURE", "FETCH 1 BODY.PEEK[300]", "SEARCH BODY nothing"])
async def test_whole_bodies_are_in_memory_one_at_a_time(
    mail: HookedMail, served: ImapServices, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    await mail.save(await mail.folder("alice", "INBOX"), NewMessage(HUGE_PART))
    read, threads, go_on = 0, 0, trio.Event()

    async def counting(body: BodyReader) -> bytes:
        nonlocal read
        read += 1
        return await read_all(body)

    async def waiting(work: Callable[[], T]) -> T:
        nonlocal threads
        threads += 1
        await go_on.wait()
        return work()

    monkeypatch.setattr(message_reader, "read_all", counting)
    served = dataclasses.replace(served, parsing=Parsing(waiting, turns=trio.Semaphore(1)))
    async with connected(served) as first, connected(served) as second:
        for client in (first, second):
            await client.log_in("alice", "INBOX")
            await client.send(f"a {command}\r\n")
        while not threads:
            await trio.testing.wait_all_tasks_blocked(0.01)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (read, threads) == (1, 1)
        go_on.set()
        answers = [await client.until("a") for client in (first, second)]
        assert answers[0] == answers[1]
        assert (read, threads) == (2, 2)


async def test_no_turn_is_held_while_a_client_reads(
    mail: HookedMail, served: ImapServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mail.save(await mail.folder("alice", "INBOX"), NewMessage(HUGE_PART))
    served = dataclasses.replace(served, parsing=Parsing(turns=trio.Semaphore(1)))
    free: list[int] = []
    write = Connection.write

    async def noting(self: Connection, chunks: Iterable[bytes]) -> None:
        free.append(served.parsing.turns.value)
        await write(self, chunks)

    monkeypatch.setattr(Connection, "write", noting)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.send("a FETCH 1 BODY.PEEK[301]\r\n")
        received = bytearray()
        while b"a OK" not in received:
            received += await client.stream.receive_some(1 << 20)
    assert (b"0123456789abcdef\r\n" * 200_000).rstrip() in received
    assert set(free) == {1}
    assert len(free) > 20, "the body is read while it is sent"


async def test_header_of_several_megabytes_can_be_fetched(mail: HookedMail, served: ImapServices) -> None:
    header = b"Subject: huge\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(200_000)) + b"\r\n"
    inbox = await mail.folder("alice", "INBOX")
    await mail.save(inbox, NewMessage(header + b"body\r\n"))
    assert (await mail.read_body((await mail.open_mailbox(inbox)).messages[1])).skeleton.lacks_header
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        envelope, *_ = await client.run("FETCH 1 ENVELOPE")
        assert '"huge"' in envelope
        told = "".join(await client.run("FETCH 1 (BODY.PEEK[TEXT] BODY.PEEK[HEADER]<0.15>)"))
        assert "body" in told
        assert "Subject: huge" in told
        assert (await client.run("SEARCH SUBJECT huge"))[0] == "* SEARCH 1"


async def test_mailbox_may_change_while_a_thread_parses(mail: HookedMail, served: ImapServices) -> None:
    inbox = await fill(mail, 2, body=b"Subject: x\r\n\r\n" + b"x" * LARGE_BODY_BYTES)
    view = await served.mail.open_mailbox(inbox)

    async def expunge_first(work: Callable[[], T]) -> T:
        await served.mail.store_flags(view, UidSet.of([2]), added=frozenset({"\\Seen"}))
        await served.mail.expunge(view, UidSet.of([1]))
        return work()

    served = dataclasses.replace(served, parsing=Parsing(run_in_thread=expunge_first))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run("SEARCH UNDELETED SMALLER 9999999 TEXT x") == [
            "* SEARCH 2",
            "* 2 FETCH (FLAGS (\\Seen \\Recent))",
            "t OK Searched",
        ]
        assert (await client.run("NOOP"))[0] == "* 1 EXPUNGE"
        assert (await client.run("UID FETCH 2 RFC822.HEADER"))[0].startswith("* 1 FETCH (UID 2 RFC822.HEADER {")


def lose_attachment(directory: Path) -> None:
    (content,) = directory.rglob("content.*")
    content.unlink()


async def test_message_with_a_lost_attachment_is_left_out(
    mail: HookedMail, served: ImapServices, tmp_path: Path
) -> None:
    await fill(mail, body=b"Subject: large\r\n\r\n" + b"Hello\r\n" * 20_000)
    lose_attachment(tmp_path)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run("FETCH 1 (BODY[])") == [
            "t NO [UNAVAILABLE] 1 message is left out: no node in reach has the body of UID 1; try again later"
        ]
        assert (await client.run("FETCH 1 (FLAGS)"))[0] == "* 1 FETCH (FLAGS (\\Recent))"  # not marked as seen
        header = await client.run("FETCH 1 (BODY.PEEK[HEADER])")
        assert header[0].startswith("* 1 FETCH (BODY[HEADER] ")
