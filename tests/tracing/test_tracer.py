"""Whom a tracer tells what: filters, replies, names of mailboxes, queues that are full, and links that end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgpack
import pytest
import trio
import trio.testing

from protocol import commands as c
from protocol.values import Dot, UidSet
from replicator.errors import UnavailableError
from replicator.tracing.descriptions import Key
from replicator.tracing.folder_names import AGAIN_S, FRESH_S, FolderNames
from replicator.tracing.traced import LeftOut, LinkEnded, TracedCommand, TracedPlace, TraceEnded
from replicator.tracing.tracer import (
    BEAT_S,
    DEFECT,
    HEAVY_BYTES,
    QUEUE_BYTES,
    QUEUE_COMMANDS,
    REQUESTS_MAX,
    TRACES_MAX,
    TooManyTracesError,
    Trace,
    Tracer,
    Wanted,
)
from resync.entry import Entry
from tests.one_node import run_inline
from tests.tracing.fixed_links import INBOX_ID, NOW_MS, OTHER_ID, FixedLink, FixedLinks, inbox_of

T = TypeVar("T")

FOLDERS = {"ann": {INBOX_ID: "INBOX", OTHER_ID: "Work"}, "bob": {OTHER_ID: "INBOX"}}


async def names_of(user: str) -> Mapping[bytes, str]:
    await trio.lowlevel.checkpoint()
    return FOLDERS.get(user, {})


def tracer_of(links: FixedLinks, read: Callable[[str], Awaitable[Mapping[bytes, str]]] = names_of) -> Tracer:
    return Tracer(links, FolderNames(read), lambda: NOW_MS, run_inline)


async def commands(trace: Trace, count: int) -> list[TracedCommand]:
    found = []
    for _ in range(count):
        event = await trace.next()
        assert isinstance(event, TracedCommand), event
        found.append(event)
    assert not trace.has_more
    return found


async def names(trace: Trace, count: int) -> list[str]:
    return [one.command for one in await commands(trace, count)]


async def test_links_are_observed_while_somebody_listens() -> None:
    links = FixedLinks()
    tracer = tracer_of(links)
    assert links.observer is None
    with tracer.trace(Wanted()):
        assert links.observer is tracer
        with tracer.trace(Wanted()):
            pass
        assert links.observer is tracer
    assert links.observer is None


async def test_there_are_few_traces_at_once() -> None:
    links = FixedLinks()
    tracer = tracer_of(links)
    opened = [tracer.trace(Wanted()) for _ in range(TRACES_MAX)]
    for one in opened:
        one.__enter__()
    assert tracer.is_full
    with pytest.raises(TooManyTracesError), tracer.trace(Wanted()):
        pass
    opened[0].__exit__(None, None, None)
    with tracer.trace(Wanted()):
        assert tracer.is_full


async def test_command_is_told_with_its_mailbox_and_entry() -> None:
    links = FixedLinks([FixedLink("dc2", {True: {3: ("ann", OTHER_ID, 7)}})])
    header = c.EntryHeader(Dot("dc1.a", 17), (), 1, 42, b"d" * 16)
    with tracer_of(links).trace(Wanted()) as trace:
        links.says(c.Expunge(3, UidSet.of([5]), entry=header), size_bytes=230)
        [told] = await commands(trace, 1)
    place = TracedPlace("ann", "Work", OTHER_ID.hex(), is_tree=False)
    assert told == TracedCommand(
        time_ms=NOW_MS,
        peer="dc2",
        sent=True,
        command="EXPUNGE",
        tag=None,
        answers=None,
        took_ms=None,
        places=(place,),
        entries=("dc1.a 17",),
        size_bytes=230,
        detail="uids=5 modseq=42",
    )


async def test_numbers_of_both_directions_are_apart() -> None:
    links = FixedLinks()
    with tracer_of(links).trace(Wanted()) as trace:
        links.says(inbox_of("ann", 1))
        links.hears(c.Mbox(1, "bob", "", OTHER_ID, 7))
        links.says(c.FetchUid(1, 4), "r1")
        links.hears(c.FetchUid(1, 4), "r1")
        links.says(c.FetchUid(1, 4), "r1", to=1)  # dc3 has no such number
        *_, sent, came, other = await commands(trace, 5)
    assert [place.user for place in (*sent.places, *came.places)] == ["ann", "bob"]
    assert other.places == ()


async def test_reply_is_told_with_its_request(autojump_clock: trio.testing.MockClock) -> None:
    links = FixedLinks()
    with tracer_of(links).trace(Wanted(commands=frozenset({"FETCH"}))) as trace:
        links.says(inbox_of("ann", 1))
        links.says(c.FetchUid(1, 4), "r1")
        links.hears(c.Ping(), "r1")  # the peer's tags are its own
        await trio.sleep(0.25)
        links.hears_reply(c.Content(b"mail"), "r1")
        links.hears_reply(c.Content(b"mail"), "r1")  # and no reply to anything
        _, reply = await commands(trace, 2)
    assert (reply.command, reply.answers, reply.took_ms, reply.tag) == ("CONTENT", "FETCH-UID", 250, "r1")
    assert [place.user for place in reply.places] == ["ann"]
    assert autojump_clock.current_time() > 0


async def test_requests_without_replies_are_forgotten() -> None:
    links = FixedLinks()
    with tracer_of(links).trace(Wanted(commands=frozenset({"DONE"}))) as trace:
        for number in range(REQUESTS_MAX + 1):
            links.says(c.Ping(), f"r{number}")
        links.hears_reply(c.Done(), "r0")
        links.hears_reply(c.Done(), "r1")
        assert [one.answers for one in await commands(trace, 2)] == [None, "PING"]


async def test_filters() -> None:
    links = FixedLinks()
    tracer = tracer_of(links)
    with (
        tracer.trace(Wanted(peer="dc3")) as of_peer,
        tracer.trace(Wanted(commands=frozenset({"SYNC", "PING"}))) as of_commands,
        tracer.trace(Wanted(user="ann")) as of_user,
        tracer.trace(Wanted(user="ann", mailbox="Work")) as of_mailbox,
    ):
        links.says(inbox_of("ann", 1))
        links.says(c.Mbox(2, "ann", "", OTHER_ID, 7))
        links.says(c.Mbox(3, "bob", "", OTHER_ID, 7))
        links.says(c.SyncMailbox(2), "r1")
        links.says(c.SyncMailbox(3), "r2")
        links.says(c.Ping(), "r3", to=1)
        assert await names(of_peer, 1) == ["PING"]
        assert await names(of_commands, 3) == ["SYNC-MAILBOX", "SYNC-MAILBOX", "PING"]
        assert await names(of_user, 3) == ["MBOX", "MBOX", "SYNC-MAILBOX"]
        event = await of_mailbox.next()
        assert isinstance(event, TracedCommand)
        assert [place.mailbox for place in event.places] == ["Work"]
        assert await names(of_mailbox, 1) == ["SYNC-MAILBOX"]


async def test_names_of_others_are_not_read_for_a_trace_of_one_user() -> None:
    asked = list[str]()

    async def read(user: str) -> Mapping[bytes, str]:
        asked.append(user)
        return await names_of(user)

    def entries_of(user: str) -> c.Entries:
        entry = Entry(Dot("dc1.a", 1), (), 1, 1, user, INBOX_ID, 7, ())
        return c.Entries(msgpack.packb([(*entry.dot, entry.pack(), [])]))

    links = FixedLinks()
    with tracer_of(links, read).trace(Wanted(user="ann")) as trace:
        links.hears(entries_of("bob"))
        links.hears(entries_of("ann"))
        [told] = await commands(trace, 1)
    assert [place.mailbox for place in told.places] == ["INBOX"]
    assert asked == ["ann"]


async def test_a_defect_ends_the_traces_and_no_link(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FixedLink):
        def numbers(self, *, sent: bool) -> Mapping[int, Key]:
            raise KeyError(sent)

    links = FixedLinks([FixedLink("dc2"), Broken("dc3")])
    tracer = tracer_of(links)
    with tracer.trace(Wanted()) as one, tracer.trace(Wanted(peer="dc2")) as other:
        links.says(c.Ping(), "r1")
        links.says(c.Ping(), "r2", to=1)
        links.says(c.Ping(), "r3", to=1)
        for trace in (one, other):
            assert await names(trace, 1) == ["PING"]
            assert await trace.next() == TraceEnded(DEFECT)
        assert links.observer is None
        with tracer.trace(Wanted()) as later:
            assert links.observer is tracer
            links.says(c.Ping(), "r4")
            assert await names(later, 1) == ["PING"]
    assert links.observer is None
    assert [record.message for record in caplog.records] == ["traces have failed, and end"]


async def test_marks_are_of_one_trace() -> None:
    links = FixedLinks()
    tracer = tracer_of(links)
    with tracer.trace(Wanted()) as one, tracer.trace(Wanted()) as other:
        for _ in range(2):
            links.hears(c.Annotate("ann", b"", b"value"))
        first, second = await commands(one, 2)
        assert first.detail == second.detail
        assert first.detail != (await commands(other, 2))[0].detail


async def test_what_does_not_fit_is_counted() -> None:
    links = FixedLinks()
    with tracer_of(links).trace(Wanted()) as trace:
        for _ in range(QUEUE_COMMANDS + 37):
            links.says(c.Ping(), "r1")
        for _ in range(QUEUE_COMMANDS // 2 + 1):
            await trace.next()
        links.says(c.SyncNode(), "r2")
        for _ in range(QUEUE_COMMANDS // 2 - 1):
            assert isinstance(await trace.next(), TracedCommand)
        assert await trace.next() == LeftOut(37)
        assert await names(trace, 1) == ["SYNC-NODE"]


async def test_large_commands_are_described_in_a_thread() -> None:
    in_threads = list[object]()

    async def run(work: Callable[[], T]) -> T:
        in_threads.append(done := await run_inline(work))
        return done

    links = FixedLinks()
    with Tracer(links, FolderNames(names_of), lambda: NOW_MS, run).trace(Wanted()) as trace:
        links.hears(c.Annotate("ann", b"", b"v" * HEAVY_BYTES), size_bytes=HEAVY_BYTES + 50)
        links.hears(c.Annotate("ann", b"", b"value"))
        large, small = await commands(trace, 2)
    assert len(in_threads) == 1
    assert large.detail.startswith(f"values={{{HEAVY_BYTES} ")
    assert small.places == (TracedPlace("ann", None, "", is_tree=True),)


async def test_queue_is_bounded_in_bytes() -> None:
    links = FixedLinks()
    with tracer_of(links).trace(Wanted()) as trace:
        links.says(c.Ping(), "r1", size_bytes=2 * QUEUE_BYTES)  # one may be larger
        links.says(c.Ping(), "r2")
        assert isinstance(await trace.next(), TracedCommand)
        assert await trace.next() == LeftOut(1)
        links.says(c.Ping(), "r3")
        assert await names(trace, 1) == ["PING"]


async def test_trace_of_a_peer_ends_with_its_link() -> None:
    links = FixedLinks()
    tracer = tracer_of(links)
    with tracer.trace(Wanted(peer="dc2")) as of_peer, tracer.trace(Wanted()) as of_all:
        links.says(c.Ping(), "r1")
        links.loses(1)
        links.loses(0)
        assert await names(of_peer, 1) == ["PING"]
        assert await of_peer.next() == TraceEnded("the link to dc2 has ended")
        assert isinstance(await of_all.next(), TracedCommand)
        assert [await of_all.next(), await of_all.next()] == [LinkEnded(NOW_MS, "dc3"), LinkEnded(NOW_MS, "dc2")]


async def test_silence_is_told(autojump_clock: trio.testing.MockClock) -> None:
    links = FixedLinks()
    with tracer_of(links).trace(Wanted(user="ann")) as trace:
        links.says(c.Ping(), "r1")
        assert await trace.next() is None
    assert autojump_clock.current_time() == BEAT_S


async def test_names_are_read_again_when_they_may_have_changed(autojump_clock: trio.testing.MockClock) -> None:
    asked = list[str]()

    async def read(user: str) -> Mapping[bytes, str]:
        await trio.lowlevel.checkpoint()
        asked.append(user)
        if len(asked) == 3:
            raise UnavailableError("the database is locked")
        return {INBOX_ID: f"name {len(asked)}"}

    known = FolderNames(read)
    assert [await known.get("ann", INBOX_ID), await known.get("ann", INBOX_ID)] == ["name 1", "name 1"]
    assert await known.get("ann", OTHER_ID) is None
    await trio.sleep(AGAIN_S)
    assert await known.get("ann", OTHER_ID) is None
    assert asked == ["ann", "ann"]
    await trio.sleep(FRESH_S)
    assert await known.get("ann", INBOX_ID) is None
    assert autojump_clock.current_time() > 0
