"""Entries of very many changes travel by a shared object store, and on the links if the object store fails."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Copy, EntryHeader, Log, Remote
from protocol.commands import Store as StoreFlags
from protocol.stream_codec import Request
from protocol.values import Dot, UidSet
from replicator.config import CheckpointConfig, MastershipConfig
from replicator.replication import timing
from replicator.replication.links import object_entries
from replicator.replication.links.object_entries import capability
from replicator.runtime.environment import Environment
from replicator.runtime.objects import ObjectStore
from replicator.store.checkpoints.container import ContainerKind, seal
from replicator.store.checkpoints.entry_object import entry_name, write_entry
from replicator.store.db import queries
from resync.entry import Change, Entry, FlagAdd, MailAdd
from tests.effort import spread
from tests.replication.cluster import EPOCH_MS, USER, Cluster, cluster, until
from tests.replication.stranger import INBOX, ORIGIN, Stranger, approach, header, reasons

T = TypeVar("T")

MAILS = 6
CALM = MastershipConfig(heartbeat_s=10.0, timeout_s=40.0)  # tests last minutes, and each heartbeat costs real time


@pytest.fixture(autouse=True)
def _few_changes_count_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_entries, "CHANGES_MIN", MAILS - 1)


@asynccontextmanager
async def with_mail(tmp_path: Path, clock: MockClock, size: int = 3) -> AsyncIterator[Cluster]:
    """Run nodes; dc1 masters an INBOX with messages, and a folder to copy them to."""
    async with cluster(tmp_path, clock, size, shares_objects=True, mastership=CALM) as nodes:
        for number in range(MAILS):
            await nodes["dc1"].save(f"mail {number}")
        await nodes["dc1"].mail.create_folder(USER, "Archive")
        await nodes["dc1"].save("first", "Archive")
        await nodes.converged()
        yield nodes


async def copy_all(nodes: Cluster) -> Dot:
    """Copy all of dc1's INBOX at once; return the dot of the entry."""
    dc1 = nodes["dc1"]
    await dc1.mail.copy(await dc1.view(), UidSet.of(range(1, MAILS + 1)), await dc1.mail.folder(USER, "Archive"))
    return Dot(dc1.store.origin, dc1.store.context[dc1.store.origin])


async def entry_at(nodes: Cluster, dot: Dot) -> Entry:
    entry = await nodes["dc1"].store.read(lambda reader: queries.entry_at(reader, dot))
    assert entry is not None
    return entry


async def assert_copied(nodes: Cluster, times: int = 1) -> None:
    await nodes.converged()
    for node in nodes.all():
        assert len(await node.bodies("Archive")) == 1 + times * MAILS


def sent(nodes: Cluster, kind: type[T], sender: str, receiver: str) -> list[T]:
    """Return the commands of one kind that went over a link."""
    items = nodes.network.road(sender, receiver).items()
    return [item.command for item in items if isinstance(item, Request) and isinstance(item.command, kind)]


def objects(nodes: Cluster) -> list[Path]:
    return sorted(path for path in (nodes.directory / "checkpoints" / "mail" / "entries").rglob("*") if path.is_file())


async def test_large_entry_is_stored_once_and_sent_by_name(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        dot = await copy_all(nodes)
        await assert_copied(nodes)
        [path] = objects(nodes)
        assert path.relative_to(tmp_path / "checkpoints") == Path("mail", "entries", dot.origin, str(dot.seq))
        for other in ("dc2", "dc3"):
            [command] = sent(nodes, Remote, "dc1", other)
            assert (command.entry.dot, command.entry.changes) == (dot, MAILS)
            assert sent(nodes, Copy, "dc1", other) == []
        written = path.stat()
        await nodes.stop("dc3")
        await copy_all(nodes)
        await nodes.start("dc3")
        await nodes.linked()
        await assert_copied(nodes, times=2)
        assert path.stat().st_mtime_ns == written.st_mtime_ns
        assert len(objects(nodes)) == 2


async def test_nodes_without_a_shared_store_send_everything_on_the_link(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, start=["dc1"], shares_objects=True) as nodes:
        nodes.shares_objects = False
        await nodes.start("dc2")
        nodes.shares_objects = True
        await nodes.start("dc3")
        await nodes.linked()
        for number in range(MAILS):
            await nodes["dc1"].save(f"mail {number}")
        await nodes["dc1"].mail.create_folder(USER, "Archive")
        await nodes["dc1"].save("first", "Archive")
        await copy_all(nodes)
        await assert_copied(nodes)
        assert len(sent(nodes, Copy, "dc1", "dc2")) == MAILS
        assert sent(nodes, Remote, "dc1", "dc2") == []
        assert len(sent(nodes, Remote, "dc1", "dc3")) == 1


async def test_small_entries_and_entries_with_bodies_go_on_the_link(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        monkeypatch.setattr(object_entries, "CHANGES_MIN", MAILS)
        await copy_all(nodes)
        monkeypatch.setattr(object_entries, "BYTES_MIN", 10)
        await nodes["dc1"].save("a text that is longer than that")
        await assert_copied(nodes)
        assert objects(nodes) == []
        await copy_all(nodes)  # large by its bytes
        await assert_copied(nodes, times=2)
        assert len(objects(nodes)) == 1
        monkeypatch.setattr(object_entries, "BYTES_MAX", 10)
        await copy_all(nodes)
        await assert_copied(nodes, times=3)
        assert len(objects(nodes)) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-40]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"".join(seal(ContainerKind.CHECKPOINT, [b"x"]))),
        lambda path: path.write_bytes(b"".join(seal(ContainerKind.ENTRY, [b"\xc1"]))),
        lambda path: path.write_bytes(b"".join(seal(ContainerKind.ENTRY, [b"\x91\xa8MAIL_DEL"] * (MAILS + 1)))),
    ],
    ids=["torn", "empty", "of another kind", "of no changes", "too long"],
)
async def test_damaged_object_is_refused_and_its_entry_comes_on_the_link(
    tmp_path: Path, autojump_clock: MockClock, damage: Callable[[Path], None]
) -> None:
    async with with_mail(tmp_path, autojump_clock, 2) as nodes:
        first = await copy_all(nodes)
        await assert_copied(nodes)
        await nodes.stop("dc2")
        await nodes.linked()  # dc1 knows that dc2 is down, and has nothing half written
        dot = await copy_all(nodes)
        place(nodes, await entry_at(nodes, dot))  # as if dc1 had begun to send the entry before
        damage(objects(nodes)[1])
        await nodes.start("dc2")
        await nodes.linked()
        await assert_copied(nodes, times=2)
        for path in objects(nodes):  # for a while all entries come on the link
            path.unlink()
        await copy_all(nodes)
        await assert_copied(nodes, times=3)
        assert [command.entry.dot for command in sent(nodes, Remote, "dc1", "dc2")] == [first, dot]
        await trio.sleep(timing.OBJECT_ENTRIES_INLINE_S)
        last = await copy_all(nodes)
        await assert_copied(nodes, times=4)
        assert [command.entry.dot for command in sent(nodes, Remote, "dc1", "dc2")] == [first, dot, last]


async def test_object_of_another_entry_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        dot = await copy_all(nodes)
        entry = await entry_at(nodes, dot)
        first = entry.changes[0]
        assert isinstance(first, MailAdd)
        forged = replace(entry, changes=(first._replace(guid=b"f" * 16), *entry.changes[1:]))
        objects(nodes)[0].write_bytes(b"".join(write_entry(forged)))
        nodes.rejoin("dc3")
        await nodes.linked()
        await assert_copied(nodes)


async def test_missing_object_is_written_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await copy_all(nodes)
        objects(nodes)[0].unlink()
        nodes.rejoin("dc3")
        await nodes.linked()
        await assert_copied(nodes)
        assert len(objects(nodes)) == 1
        assert sent(nodes, Copy, "dc1", "dc3") == sent(nodes, Copy, "dc2", "dc3") == []


async def test_node_that_finds_no_object_gets_the_entry_on_the_link(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        elsewhere = (tmp_path / "not mounted").as_uri()
        nodes["dc3"].coordinator.remotes._objects = ObjectStore(elsewhere, Environment())
        await copy_all(nodes)
        await assert_copied(nodes)
        assert sent(nodes, Copy, "dc1", "dc2") == []
        assert len(sent(nodes, Copy, "dc1", "dc3")) == MAILS
        assert [log.inline for log in sent(nodes, Log, "dc3", "dc1")][-1]


async def test_failing_object_store_is_not_used_for_a_while(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        blocked = tmp_path / "checkpoints" / "mail"
        blocked.write_bytes(b"a file where a directory is to be")
        await copy_all(nodes)
        await assert_copied(nodes)
        blocked.unlink()
        await copy_all(nodes)
        await assert_copied(nodes, times=2)
        assert objects(nodes) == []
        await trio.sleep(timing.OBJECT_ENTRIES_REST_S)
        await copy_all(nodes)
        await assert_copied(nodes, times=3)
        assert len(objects(nodes)) == 1


@pytest.mark.parametrize("hangs_at", spread(1, ["dc1", "dc3"]))
async def test_hanging_object_store_delays_only_one_entry(
    tmp_path: Path, autojump_clock: MockClock, hangs_at: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        released = trio.Event()

        async def hang(work: Callable[[], T]) -> T:
            await released.wait()
            return work()

        remotes = nodes[hangs_at].coordinator.remotes
        whole = remotes._objects
        hanging = Environment(run_in_thread=hang, run_until_cancelled=hang)
        remotes._objects = ObjectStore((tmp_path / "checkpoints").as_uri(), hanging)
        began = trio.current_time()
        await copy_all(nodes)
        await assert_copied(nodes)
        assert timing.OBJECT_ENTRIES_TIMEOUT_S <= trio.current_time() - began < timing.OBJECT_ENTRIES_TIMEOUT_S + 2
        assert "has not answered for 10 s" in caplog.text
        await trio.sleep(max(timing.OBJECT_ENTRIES_REST_S, timing.OBJECT_ENTRIES_INLINE_S) + 1)
        began = trio.current_time()
        await copy_all(nodes)
        await assert_copied(nodes, times=2)
        assert trio.current_time() - began < 2
        remotes._objects = whole
        released.set()
        await trio.sleep(max(timing.OBJECT_ENTRIES_REST_S, timing.OBJECT_ENTRIES_INLINE_S) + 1)
        before = len(sent(nodes, Remote, "dc1", "dc3"))
        await copy_all(nodes)
        await assert_copied(nodes, times=3)
        assert len(sent(nodes, Remote, "dc1", "dc3")) == before + 1


async def test_objects_of_forgotten_entries_are_removed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        first = await copy_all(nodes)
        second = await copy_all(nodes)
        await assert_copied(nodes, times=2)
        foreign = objects(nodes)[0].with_name("notes.txt")
        foreign.write_text("of somebody else")
        others = foreign.parent.with_name("dc9.x") / "1"
        others.parent.mkdir()
        others.write_bytes(b"")
        remotes = nodes["dc2"].coordinator.remotes
        await remotes.forget({first.origin: first.seq - 1})
        assert len(objects(nodes)) == 4
        await remotes.forget({first.origin: first.seq})
        assert {path.name for path in objects(nodes)} == {str(second.seq), "notes.txt", "1"}
        await remotes.forget({second.origin: 1 << 60})
        assert {path.name for path in objects(nodes)} == {"notes.txt", "1"}


def test_capability_names_all_that_identifies_an_object_store() -> None:
    here = CheckpointConfig("s3://mail/x", "https://objects.example:9000", shared=True)
    names = {
        capability(here),
        capability(replace(here, url="s3://mail/y")),
        capability(replace(here, endpoint=None)),
        capability(replace(here, endpoint="https://objects.example:9001")),
    }
    assert len(names) == 4
    assert capability(replace(here)) in names
    assert capability(replace(here, shared=False)) == ()


# ---- a stranger that announces objects


@asynccontextmanager
async def visit(nodes: Cluster, *, shared: bool = True, answers_log: bool = True) -> AsyncIterator[Stranger]:
    """Link a stranger to dc2 that shares its object store."""
    stranger = await approach(nodes)
    stranger.answers_log = answers_log
    await stranger.greet(capabilities=capability(nodes.config("dc2").checkpoint) if shared else ())
    await stranger.number_mailbox()
    yield stranger
    await trio.aclose_forcefully(stranger.stream)


def announced(changes: tuple[Change, ...], entry: EntryHeader | None = None) -> tuple[Remote, Entry]:
    """Make a REMOTE, and the entry with these changes that it announces."""
    entry = entry or header(1, changes=len(changes))
    whole = Entry(entry.dot, entry.predecessors, entry.time, entry.modseq, *INBOX, changes)
    return Remote(1, replace(entry, digest=whole.digest()), entry_name("mail", entry.dot)), whole


def mails(number: int, **changes: object) -> tuple[MailAdd, ...]:
    return tuple(
        MailAdd(uid, bytes([uid]) * 16, EPOCH_MS, ("\\Seen",), 4, b"h" * 32, copied=True)._replace(**changes)  # type: ignore[arg-type]
        for uid in range(1, number + 1)
    )


def place(nodes: Cluster, entry: Entry) -> None:
    path = nodes.directory / "checkpoints" / entry_name("mail", entry.dot)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(write_entry(entry)))


FLAGGED = StoreFlags(1, UidSet.of([1]), ("a",), ())
SOUND = announced(mails(3))[0]


async def test_announced_entry_is_read_from_the_store_in_its_order(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"], shares_objects=True) as nodes:
        store = nodes["dc2"].store
        async with visit(nodes, answers_log=False) as stranger:
            await stranger.next_log()
            command, entry = announced(mails(3), header(2, changes=3))
            place(nodes, entry)
            await stranger.send_entry(1, FLAGGED)
            await stranger.send(command)
            await stranger.send_entry(3, FLAGGED)
            await until(lambda: store.context.get(ORIGIN) == 3)
            assert await asks_for_nothing(stranger)
        assert await store.read(lambda reader: queries.entry_at(reader, entry.dot)) == entry


async def test_entry_that_is_already_logged_is_not_read_again(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"], shares_objects=True) as nodes:
        async with visit(nodes, answers_log=False) as stranger:
            await stranger.next_log()
            await stranger.send_entry(1, FLAGGED)
            await stranger.send(SOUND)
            await stranger.send_entry(2, FLAGGED)
            await until(lambda: nodes["dc2"].store.context.get(ORIGIN) == 2)
            assert await asks_for_nothing(stranger)
        assert "travels on the link" not in caplog.text


async def test_no_object_is_read_after_an_unreadable_one(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with (
        cluster(tmp_path, autojump_clock, 2, start=["dc2"], shares_objects=True) as nodes,
        visit(nodes, answers_log=False) as stranger,
    ):
        await stranger.next_log()
        await stranger.send(SOUND)
        command, entry = announced(mails(3), replace(header(1, changes=3), dot=Dot("dc9.x", 1)))
        place(nodes, entry)
        await stranger.send(command)
        assert (await stranger.next_log()).inline
        await stranger.send_entry(1, FLAGGED)
        await until(lambda: nodes["dc2"].store.context.get(ORIGIN) == 1)
        await trio.sleep(1)
        assert "dc9.x" not in nodes["dc2"].store.context


async def asks_for_nothing(stranger: Stranger) -> bool:
    """Check that dc2 asks for nothing more, because it has every entry that was announced."""
    with trio.move_on_after(timing.OBJECT_ENTRIES_TIMEOUT_S):
        await stranger.next_command(Log)
        return False
    return True


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (replace(SOUND, name="mail/entries/dc1.stranger/2"), "is not the object of"),
        (replace(SOUND, name="mail/checkpoints/dc2"), "is not the object of"),
        (replace(SOUND, mailbox=7), "no MBOX has assigned mailbox number 7"),
        (replace(SOUND, entry=header(1, change=1, changes=3)), "a REMOTE must announce change 0, not 1"),
        (replace(SOUND, entry=header(1, changes=100_001)), "100001 changes; it must have 1 to 100000"),
        (replace(SOUND, entry=header(1, changes=0)), "0 changes; it must have 1"),
    ],
)
async def test_invalid_remote_ends_the_link(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, command: Remote, error: str
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"], shares_objects=True) as nodes:
        async with visit(nodes) as stranger:
            await stranger.send(command)
            assert await stranger.ended()
        await until(lambda: any(error in reason for reason in reasons(caplog.records)))


@pytest.mark.parametrize("node_shares", [True, False])
async def test_remote_between_nodes_without_a_shared_store_ends_the_link(
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    node_shares: bool,  # noqa: FBT001 - parametrized
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"], shares_objects=node_shares) as nodes:
        async with visit(nodes, shared=not node_shares) as stranger:
            await stranger.send(SOUND)
            assert await stranger.ended()
        await until(lambda: any("shares no object store" in reason for reason in reasons(caplog.records)))


@pytest.mark.parametrize(
    "changes",
    [
        mails(3, uid="1"),
        mails(3, guid="g" * 16),
        mails(3, received_ms=None),
        mails(3, flags=(1,)),
        mails(3, flags="\\Seen"),
        mails(3, flags=("a b",)),
        mails(3, flags=("x)\r\na ROOT 1 dc1",)),
        mails(3, size_bytes=1.5),
        mails(3, content_hash=None),
        mails(3, copied=1),
        (FlagAdd(UidSet((("1", "2"),)), ("a",)),),  # type: ignore[arg-type]
        (FlagAdd(UidSet(((1, 2, 3),)), ("a",)),),  # type: ignore[arg-type]
        (FlagAdd(UidSet(((1, 2),)), ("",)),),
        (FlagAdd(UidSet(((1, 2),)), (b"a",)),),  # type: ignore[arg-type]
    ],
    ids=str,
)
async def test_object_with_changes_that_no_command_can_carry_is_refused(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, changes: tuple[Change, ...]
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"], shares_objects=True) as nodes:
        async with visit(nodes, answers_log=False) as stranger:
            command, entry = announced(changes)
            place(nodes, entry)
            assert not (await stranger.next_log()).inline
            await stranger.send(command)
            assert (await stranger.next_log()).inline
        assert "travels on the link because" in caplog.text
        assert nodes["dc2"].store.context.get(ORIGIN) is None
