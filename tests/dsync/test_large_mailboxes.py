"""Syncs of mailboxes with many mails that are equal: what they look at, and what they keep in memory."""

from __future__ import annotations

import gc
import math
import time
import tracemalloc
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import trio

from protocol.values import UidSet
from replicator.dsync.conversation import mailbox_sync
from replicator.dsync.node_mail.read_mails import AT_ONCE
from replicator.dsync.rules.mails.comparison import Told
from replicator.dsync.rules.mails.flags import FlagChanges
from replicator.dsync.rules.mails.merging import plan_merge
from replicator.dsync.rules.mails.plan import Known, Plan
from replicator.dsync.rules.tree import Delete
from replicator.dsync.wire.items import (
    Attribute,
    ChangeType,
    Mail,
    Mailbox,
    MailboxState,
    MailChange,
    MailRequest,
    TreeNode,
)
from replicator.errors import UnavailableError
from replicator.mail import rows
from replicator.mail.last_changes import FlagChange
from replicator.mail.listing import ListedMessage, Listing
from replicator.mail.mailstore import Folder, NewMessage
from replicator.mail.scratch import Scratch
from tests.dsync.dovecot import dovecot, needs_dovecot
from tests.dsync.scripted import ScriptedMaster, StreamPair, scripted_master
from tests.dsync.sides import USER, DovecotSide, Master, NodeSide, door, node_replicas
from tests.one_node import HookedMail, one_node

MANY = 800
TOGETHER = 50
WORK = b"\x0a" * 16
SEEN = frozenset({"\\Seen"})
FEW, MORE = 1_000, 4_000
ATTEMPTS = 3


def now_ms() -> int:
    return int(time.time() * 1000)


async def fill(mail: HookedMail, mails: int) -> None:
    folder = await mail.folder(USER, "INBOX")
    texts = [b"Subject: %d\r\n\r\n" % number for number in range(mails)]
    for first in range(0, mails, TOGETHER):
        await mail.save_all(folder, [NewMessage(text) for text in texts[first : first + TOGETHER]])


@dataclass
class Looks:
    """Mails that were looked at: in each plan, in all listings, and for their flags."""

    planned: list[int] = field(default_factory=list)
    listed: int = 0
    of_flags: int = 0


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    found, of_database = Looks(), Listing.of
    flag_changes = HookedMail.flag_changes

    def counted_plan(known: Known, theirs: Mailbox, told: Told, state: MailboxState | None) -> Plan:
        found.planned.append(len(known.mails))
        return plan_merge(known, theirs, told, state)

    def counted_listing(messages: Iterable[ListedMessage], scratch: Scratch | None = None) -> Listing:
        listing = of_database(messages, scratch)
        found.listed += len(listing)
        return listing

    async def counted_flags(
        mail: HookedMail, folder: Folder, uids: UidSet, above: int
    ) -> Mapping[int, Sequence[FlagChange]]:
        changes = await flag_changes(mail, folder, uids, above)
        found.of_flags += len(changes)
        return changes

    monkeypatch.setattr(mailbox_sync, "plan_merge", counted_plan)
    monkeypatch.setattr(Listing, "of", counted_listing)
    monkeypatch.setattr(HookedMail, "flag_changes", counted_flags)
    return found


@needs_dovecot
async def test_a_sync_by_a_state_looks_at_what_has_changed(tmp_path: Path, looks: Looks) -> None:
    with dovecot() as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            master, sides = Master(server, address), (DovecotSide(server), NodeSide(mail))
            await fill(mail, MANY)
            for _ in range(3):
                assert (await master.sync("s")).returncode == 0
            for number in range(1, 5):
                for side in sides:
                    await side.append(b"Subject: new\r\n\r\n")
                await sides[0].flag(10 * number, "\\Seen", is_set=True)
                await sides[1].flag(10 * number + 1, "\\Flagged", is_set=True)
                await sides[0].expunge(10 * number + 2)
                await sides[1].expunge(10 * number + 3)
                if number == 2:  # the first one looks again at mails that have come together, with one MODSEQ
                    looks.planned.clear()
                    looks.of_flags = looks.listed = 0
                assert (await master.sync("s")).returncode == 0
                assert (await master.sync("s")).returncode == 0
                assert await sides[0].shown() == await sides[1].shown()
            assert 0 < max(looks.planned) < 20
            assert looks.of_flags < 40
            assert looks.listed < 200


async def test_a_sync_changes_more_mails_than_are_read_together(tmp_path: Path) -> None:
    mails, gone = 2 * AT_ONCE + 200, 2 * AT_ONCE + 100
    async with one_node(tmp_path) as mail, node_replicas(mail, now_ms)(USER) as replica:
        await fill(mail, mails)
        folder = await mail.folder(USER, "INBOX")
        async with replica.mailbox(folder.mailbox_id, "peer") as box:
            assert box is not None
            guids = [one.guid.hex() for one in await box.mails()]
            flagged = FlagChanges(added=frozenset({"\\Flagged"}))
            await box.change_flags({flagged: range(1, mails + 1)})
            await box.expunge(range(1, gone + 1))
            await box.move({uid: uid + mails for uid in range(gone + 1, mails + 1)})
        shown = [(at + 1 + mails, guids[at], flagged.added) for at in range(gone, mails)]
        assert await NodeSide(mail).shown() == shown


async def test_a_mail_that_is_moved_or_expunged_before_it_is_sent_has_its_text(tmp_path: Path) -> None:
    async with one_node(tmp_path) as mail, node_replicas(mail, now_ms)(USER) as replica:
        await fill(mail, 2)
        folder = await mail.folder(USER, "INBOX")
        async with replica.mailbox(folder.mailbox_id, "peer") as box:
            assert box is not None
            mails = await box.mails()
            await mail.renumber(await mail.open_mailbox(folder), {1: 5})
            await NodeSide(mail).expunge(2)
            texts = [b"".join([piece async for piece in await box.text(one)]) for one in mails]
            assert texts == [b"Subject: 0\r\n\r\n", b"Subject: 1\r\n\r\n"]
            await mail.store.write(lambda tx: tx.connection.execute("DELETE FROM expunged").rowcount)
            with pytest.raises(UnavailableError):
                await box.text(mails[1])


async def compare(master: ScriptedMaster, numbers: Mailbox, changes: Iterator[MailChange]) -> tuple[int, int]:
    """Tell these changes of a mailbox, and give what is asked for; nothing is kept here.

    Return how many mails were asked for, and the most memory up to then.
    """
    peer = master.peer
    await peer.send(numbers)
    assert not (await peer.one(Mailbox)).lost
    await peer.end_list()
    for change in changes:
        await peer.send(change)
    await peer.end_list()
    for kind in (Attribute, MailChange):
        while await peer.one_or_end(kind) is not None:
            pass
    await peer.end_list()
    asked = array("I")
    while (request := await peer.one_or_end(MailRequest)) is not None:
        asked.append(request.uid)
    most = tracemalloc.get_traced_memory()[1]
    for uid in asked:
        await peer.send(Mail(f"{uid:032x}", uid, 1, 1))
        await peer.send_text(text(uid))
    await peer.end_list()
    assert await peer.one_or_end(Mail) is None
    await peer.send(MailboxState(numbers.mailbox_id, numbers.uidvalidity, 0, 0))
    await peer.one(MailboxState)
    return len(asked), most


async def text(uid: int) -> AsyncIterator[bytes]:
    yield b"Subject: %d\r\n\r\n" % uid


async def memory(work: Callable[[], Awaitable[None]]) -> tuple[int, int]:
    """Return the bytes of memory that work takes at most, and those that it leaves behind."""
    gc.collect()
    tracemalloc.start()
    try:
        await work()
        most = tracemalloc.get_traced_memory()[1]
        gc.collect()
        return most, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def sockets() -> StreamPair:
    """Return a connection in which little can wait."""
    one, other = trio.socket.socketpair()
    return trio.SocketStream(one), trio.SocketStream(other)


@dataclass
class Memory:
    """Bytes that syncs take: the first one up to its plan, and beyond what stays in the end; and each later one.

    Of these, one finds all mails equal, one changes the flags of all, one their UIDs, one expunges them, and one tells
    that they are expunged.
    """

    planning: int = 0
    coming: int = 0
    equal: int = 0
    flags: int = 0
    uids: int = 0
    expunged: int = 0
    remembered: int = 0


async def memory_of_deletion(path: Path, mails: int) -> int:
    """Return the bytes that it takes to delete a folder of so many mails, of which Dovecot has never seen the half."""
    async with one_node(path) as mail, node_replicas(mail, now_ms)(USER) as replica:
        work = await mail.create_folder(USER, "Work")
        texts = [b"Subject: %d\r\n\r\n" % number for number in range(mails)]
        for first in range(0, mails, TOGETHER):
            await mail.save_all(work, [NewMessage(text) for text in texts[first : first + TOGETHER]])
        await replica.tree()
        step = Delete(("Work",), work.mailbox_id, mails // 2)
        most, stays = await memory(partial(replica.carry_out, step))
        assert await mail.bodies(USER, "Work") == texts[mails // 2 :]
    return most - stays


async def test_a_large_folder_is_deleted_in_parts(tmp_path: Path) -> None:
    """A listing takes some 50 bytes for each mail more, and the database works on some mails at a time."""
    paths = {mails: tmp_path / str(mails) for mails in (FEW, MORE)}
    for path in paths.values():
        await trio.Path(path).mkdir()
    few, many = [await memory_of_deletion(path, mails) for mails, path in paths.items()]
    assert (many - few) / (MORE - FEW) < 300


async def listed(mail: HookedMail) -> Listing:
    """Return the folder's mails, of which no view is kept."""
    return await mail.list_messages(await mail.folder(USER, "Work"))


async def memory_of(path: Path, mails: int) -> Memory:
    """Return what the syncs of so many mails take."""
    found, node = Memory(), TreeNode(("Work",), mailbox_id=WORK, uidvalidity=1_600_000_000, uidnext=1)
    top = 2 * mails

    def told(above: int = 0, flags: frozenset[str] = SEEN, modseq: int = 4) -> Iterator[MailChange]:
        """Every other mail was expunged: the UIDs between are free."""
        uids = range(2, top + 1, 2)
        return (MailChange(ChangeType.SAVE, above + uid, f"{uid:032x}", modseq, flags) for uid in uids)

    async def sync(changes: Iterator[MailChange], uidnext: int, highestmodseq: int, coming: int) -> None:
        numbers = Mailbox(WORK, node.uidvalidity, uidnext, mails, 1, highestmodseq)
        async with scripted_master(node_replicas(mail, now_ms), sockets) as master:
            await master.folders([replace(node, uidnext=uidnext)])
            came, planning = await compare(master, numbers, changes)
            assert came == coming
            assert (await master.finish()).error is None
        found.planning = found.planning or planning

    async def taken(changes: Iterator[MailChange], uidnext: int, modseq: int, coming: int = 0) -> int:
        most, stays = await memory(partial(sync, changes, uidnext, modseq, coming))
        return most - stays

    async with one_node(path) as mail:
        found.coming = await taken(told(), top + 1, 5, mails)
        found.equal = await taken(told(), top + 1, 5)
        found.flags = await taken(told(flags=SEEN | {"\\Flagged"}, modseq=2**20), top + 1, 2**20)
        assert {*(await listed(mail)).flag_sets} == {SEEN | {"\\Flagged"}}
        found.uids = await taken(told(top, SEEN | {"\\Flagged"}), 2 * top + 1, 2**21)
        assert [*(await listed(mail)).uids()] == [*range(top + 2, 2 * top + 1, 2)]
        gone = (change._replace(type=ChangeType.EXPUNGE) for change in told(top))
        found.expunged = await taken(gone, 2 * top + 1, 2**22)
        assert len(await listed(mail)) == 0
        assert len(await mail.expunged(await mail.folder(USER, "Work"))) == mails
        found.remembered = await taken(iter(()), 2 * top + 1, 2**22)
    return found


async def test_memory_does_not_grow_with_the_mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many bytes more for each mail more, where mails beyond the first ones are in a file: eight for a gap.

    Other tasks of the node take memory, too, so the least of some attempts counts.
    """
    monkeypatch.setattr(rows, "BLOCK_ROWS", FEW // 8)
    monkeypatch.setattr(rows, "BLOCKS_IN_MEMORY", 1)
    most = asdict(Memory(planning=30, coming=40, equal=30, flags=300, uids=400, expunged=250, remembered=60))
    too_much = dict.fromkeys(most, math.inf)
    for attempt in range(ATTEMPTS):
        paths = {mails: tmp_path / f"{attempt}-{mails}" for mails in (FEW, MORE)}
        for path in paths.values():
            await trio.Path(path).mkdir()
        few, many = [asdict(await memory_of(path, mails)) for mails, path in paths.items()]
        more = {name: min(too_much[name], (many[name] - few[name]) / (MORE - FEW)) for name in too_much}
        too_much = {name: value for name, value in more.items() if value > most[name]}
        if not too_much:
            break
    assert not too_much
