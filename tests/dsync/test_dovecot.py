"""Debian's Dovecot as the master of syncs, with mail in memory: random histories of both sides become equal."""

from __future__ import annotations

import time
from copy import deepcopy
from functools import partial
from random import Random
from unittest.mock import ANY

import pytest
import trio

from replicator.dsync.rules.tree import INBOX
from tests.dsync.dovecot import MAILDIR, SDBOX, dovecot, needs_dovecot
from tests.dsync.memory_replica import MemoryReplica
from tests.dsync.sides import USER, DovecotSide, History, Master, MemorySide, door
from tests.effort import examples, first

pytestmark = needs_dovecot
ROUNDS = examples(8, 20)


@pytest.mark.parametrize("location", [SDBOX, MAILDIR])
@pytest.mark.parametrize("kind", ["c", "f", "s"])
@pytest.mark.parametrize("seed", first(1, range(4)))
async def test_both_sides_become_equal(kind: str, location: str, seed: int) -> None:
    random = Random(f"{kind} {location} {seed}")
    replica = MemoryReplica()
    replica.create(INBOX, random.randbytes(16))
    with dovecot(location) as server:
        sides = DovecotSide(server), MemorySide(replica, random)
        histories = [History(side, random) for side in sides]
        async with door(lambda _: replica) as address:
            master = Master(server, address)
            for number in range(ROUNDS):
                for history in histories:
                    await history.go_on()
                done = await master.sync(kind)
                assert done.returncode == 0, (number, done)
                left, right = [await side.shown() for side in sides]
                assert left == right, (number, [history.deeds for history in histories])


async def test_texts_and_dates_are_the_same() -> None:
    replica = MemoryReplica()
    inbox = replica.create(INBOX, bytes(15) + b"\1")
    inbox.append(b"r" * 16, b".\r\n..\r\nSubject: r\r\n\r\n.\r\n", at_s=1_234_567_890)
    with dovecot() as server:
        server.save(USER, b".first: x\r\n\r\n.\r\n..\r\nlast without an end")
        async with door(lambda _: replica) as address:
            assert (await Master(server, address).sync()).returncode == 0
        [ours, theirs] = sorted(inbox.stored.values(), key=lambda mail: mail.received_ms)
        assert inbox.texts[theirs.guid] == b".first: x\r\n\r\n.\r\n..\r\nlast without an end"
        assert theirs.received_ms == 1000 * server.received_s(USER, theirs.uid)
        assert server.received_s(USER, ours.uid) == 1_234_567_890
        assert server.text(USER, ours.uid) == inbox.texts[ours.guid]


async def test_a_mailbox_that_is_equal_is_skipped() -> None:
    replica = MemoryReplica()
    replica.create(INBOX, b"\xff" * 16).append(b"r" * 16, b"Subject: r\r\n\r\n")
    with dovecot() as server:
        server.save(USER, b"Subject: x\r\n\r\n")
        reads = list[int]()
        async with door(lambda _: replica) as address:
            master = Master(server, address)
            for _ in range(4):
                before = replica.boxes[INBOX].reads
                assert (await master.sync()).returncode == 0
                reads.append(replica.boxes[INBOX].reads - before)
    assert reads[-1] == 0
    assert reads[0] == 1


async def test_older_flags_are_found_out_and_mended() -> None:
    replica = MemoryReplica()
    replica.create(INBOX, b"\xff" * 16)
    with dovecot() as server:
        side = DovecotSide(server)
        async with door(lambda _: replica) as address:
            master = Master(server, address)
            server.save(USER, b"Subject: x\r\n\r\n")
            assert (await master.sync("s")).returncode == 0
            old = deepcopy(replica.boxes[INBOX])
            for flag in ("\\Seen", "one", "two", "three", "four"):
                await side.flag(1, flag, is_set=True)
            for _ in range(2):
                assert (await master.sync("s")).returncode == 0
            replica.boxes[INBOX] = old
            assert (await master.sync("s")).returncode == 2
            assert (await master.sync("s")).returncode == 0
            assert await MemorySide(replica, Random(1)).shown() == await side.shown()
            assert len(old.stored[1].flags) == 5, "what was lost here is not lost at Dovecot"


async def test_an_older_state_is_found_out_and_mended() -> None:
    replica = MemoryReplica()
    replica.create(INBOX, b"\xff" * 16)
    with dovecot() as server:
        async with door(lambda _: replica) as address:
            master = Master(server, address)
            for _ in range(3):
                server.save(USER, b"Subject: x\r\n\r\n")
            assert (await master.sync("s")).returncode == 0
            old = deepcopy(replica.boxes[INBOX])
            for _ in range(3):
                server.save(USER, b"Subject: y\r\n\r\n")
            for _ in range(2):
                assert (await master.sync("s")).returncode == 0
            replica.boxes[INBOX] = old
            server.save(USER, b"Subject: z\r\n\r\n")
            assert (await master.sync("s")).returncode == 2
            assert master.state == ""
            assert (await master.sync("s")).returncode == 0
            assert len(await DovecotSide(server).shown()) == 7
            assert await MemorySide(replica, Random(1)).shown() == await DovecotSide(server).shown()


@pytest.mark.parametrize("kind", ["c", "s"])
async def test_mail_that_comes_during_a_sync_is_found_by_the_next(kind: str) -> None:
    random = Random(1)
    replica = MemoryReplica()
    inbox = replica.create(INBOX, b"\xff" * 16)
    sides = MemorySide(replica, random)
    with dovecot() as server:
        async with door(lambda _: replica) as address:
            master = Master(server, address)
            for number in range(3):
                server.save(USER, b"Subject: %d\r\n\r\n" % number)
                inbox.meanwhile = partial(inbox.append, random.randbytes(16), b"Subject: meanwhile\r\n\r\n")
                assert (await master.sync(kind)).returncode == 2, "Dovecot is to sync again"
                assert (await master.sync(kind)).returncode == 0
                assert len(inbox.stored) == 2 * number + 2
                assert await sides.shown() == await DovecotSide(server).shown()


async def test_equal_numbers_do_not_hide_a_difference() -> None:
    random = Random(1)
    replica = MemoryReplica()
    inbox = replica.create(INBOX, b"\xff" * 16)
    with dovecot() as server:
        async with door(lambda _: replica) as address:
            master = Master(server, address)
            for _ in range(3):
                assert (await master.sync()).returncode == 0
            numbers = server.status("INBOX")
            inbox.uidvalidity, inbox.uidnext = int(numbers["uidvalidity"]), int(numbers["uidnext"])
            inbox.highestmodseq = int(numbers["highestmodseq"])
            inbox.append(random.randbytes(16), b"Subject: here\r\n\r\n")
            server.save(USER, b"Subject: there\r\n\r\n")
            assert int(server.status("INBOX")["highestmodseq"]) == inbox.highestmodseq
            assert (await master.sync()).returncode == 0
        assert len(inbox.stored) == 2
        assert await MemorySide(replica, random).shown() == await DovecotSide(server).shown()


def folders(replica: MemoryReplica) -> dict[str, tuple[str, int]]:
    """Return ids and numbers of mails by folder, without INBOX."""
    boxes = {"/".join(name): (box.mailbox_id.hex(), len(box.stored)) for name, box in replica.boxes.items()}
    return {name: box for name, box in boxes.items() if name != "INBOX"}


@pytest.mark.parametrize(("here", "there"), [("B", "C"), ("C", "B")])
async def test_a_folder_that_both_sides_rename_in_one_second(here: str, there: str) -> None:
    """Dovecot's clock has seconds."""
    replica = MemoryReplica()
    replica.create(INBOX, b"\xff" * 16)
    with dovecot() as server:
        server.do("mailbox", "create", "-u", USER, "A")
        async with door(lambda _: replica) as address:
            master = Master(server, address)
            assert (await master.sync()).returncode == 0
            server.do("mailbox", "rename", "-u", USER, "A", there)
            replica.now_s = int(time.time())
            replica.rename(("A",), (here,))
            assert (await master.sync()).returncode == 0
        assert folders(replica) == server.folders(USER)


@pytest.mark.parametrize("ahead_s", [-100, 0, 100])
async def test_a_folder_is_renamed_as_soon_as_a_sync_has_named_it(ahead_s: int) -> None:
    """The time of the sync's own deed is later than the user's, as both sides note it, or the clocks differ."""
    replica = MemoryReplica(now_s=int(time.time()) + ahead_s)
    replica.create(INBOX, b"\xff" * 16)
    with dovecot() as server:
        server.do("mailbox", "create", "-u", USER, "There")
        replica.create(("Here",), b"h" * 16)
        async with door(lambda _: replica) as address:
            master = Master(server, address)
            assert (await master.sync()).returncode == 0
            for name in ("A", "B"):
                server.do("mailbox", "rename", "-u", USER, "There" if name == "A" else "There A", f"There {name}")
                assert (await master.sync()).returncode == 0
                replica.rename(("Here" if name == "A" else "Here A",), (f"Here {name}",))
                assert (await master.sync()).returncode == 0
        assert {*folders(replica)} == {*server.folders(USER)} == {"There B", "Here B"}


@pytest.mark.parametrize("guid", [b"\1", b"\xff"])
@pytest.mark.parametrize("known", ["here", "there, too"])
@pytest.mark.parametrize("later_s", [-2, 0, 2])
async def test_two_folders_that_both_sides_give_one_name(guid: bytes, known: str, later_s: int) -> None:
    """The last one has it. The other one keeps the name that it has on the other side, or gets a new one."""
    replica = MemoryReplica()
    replica.create(INBOX, b"\x80" * 16)
    with dovecot() as server:
        server.do("mailbox", "create", "-u", USER, "A")
        async with door(lambda _: replica) as address:
            master = Master(server, address)
            if known == "there, too":
                replica.create(("B",), guid * 16)
            assert (await master.sync()).returncode == 0
            if known == "here":
                replica.create(("B",), guid * 16)
            server.do("mailbox", "rename", "-u", USER, "A", "C")
            replica.now_s = int(time.time()) + later_s
            replica.rename(("B",), ("C",))
            assert (await master.sync()).returncode == 0
        ours = folders(replica)
        assert ours == server.folders(USER)
    is_last = ours["C"][0] == guid.hex() * 16
    assert is_last == (later_s > 0) or later_s == 0
    assert {*ours} == {"C", "A" if is_last else "C-1" if known == "here" else "B"}


async def test_a_folder_goes_up_to_the_name_of_a_deleted_one() -> None:
    """Dovecot moves no folder below a name that it has, and so not back."""
    replica = MemoryReplica()
    replica.create(INBOX, b"\xff" * 16)
    with dovecot() as server:
        for name in ("A", "A/x"):
            server.do("mailbox", "create", "-u", USER, name)
        async with door(lambda _: replica) as address:
            master = Master(server, address)
            assert (await master.sync()).returncode == 0
            server.do("mailbox", "rename", "-u", USER, "A/x", "B")
            server.do("mailbox", "delete", "-u", USER, "A")
            server.do("mailbox", "rename", "-u", USER, "B", "A")
            replica.now_s = int(time.time()) + 2
            replica.rename(("A", "x"), ("C",))
            replica.rename(("C",), ("A", "x"))
            assert (await master.sync()).returncode == 0
        assert folders(replica) == server.folders(USER) == {"A": (ANY, 0)}


async def test_backups_both_ways() -> None:
    random = Random(1)
    replica = MemoryReplica()
    inbox = replica.create(INBOX, random.randbytes(16))
    replica.create(("Extra",), random.randbytes(16)).append(random.randbytes(16), b"x\r\n\r\n")
    with dovecot() as server:
        for number in range(3):
            server.save(USER, b"Subject: %d\r\n\r\n" % number)
        server.do("mailbox", "create", "-u", USER, "Work/x")
        sides = DovecotSide(server), MemorySide(replica, random)

        async def backup(*options: str) -> int:
            command = ["backup", *options, "-u", USER, address]
            return (await trio.to_thread.run_sync(lambda: server.run(*command))).returncode

        async with door(lambda _: replica) as address:
            assert await backup() == 0
            assert {*replica.boxes} == {INBOX, ("Work",), ("Work", "x")}, "a directory is a folder here"
            assert await sides[0].shown() == await sides[1].shown()
            inbox = replica.boxes[INBOX]
            inbox.flag(2, added=frozenset({"\\Flagged"}))
            await sides[0].flag(3, "kw", is_set=True)
            await sides[0].expunge(1)
            await sides[0].append(b"Subject: new\r\n\r\n")
            before = await sides[0].shown()
            assert await backup() == 0
            assert await sides[0].shown() == await sides[1].shown() == before

            await sides[0].flag(2, "kw", is_set=True)
            await sides[0].append(b"Subject: to be lost\r\n\r\n")
            inbox.remove(3)
            inbox.append(random.randbytes(16), b"Subject: of the source\r\n\r\n")
            replica.create(("New",), random.randbytes(16))
            before = await sides[1].shown()
            assert [await backup("-R") for _ in range(2)][-1] == 0  # the first one may have to delete INBOX there
            assert await sides[0].shown() == await sides[1].shown() == before
            assert {*server.do("mailbox", "list", "-u", USER).split()} >= {"INBOX", "New"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["sync", "-u", "nobody"], 67),
        (["-o", "doveadm_password=wrong", "sync", "-u", USER], 75),
        (["sync", "-u", USER, "-t", "2020-01-01"], 65),
        (["sync", "-u", USER, "-x", "\\Junk"], 65),
    ],
)
async def test_what_cannot_be_done_fails(words: list[str], code: int) -> None:
    replica = MemoryReplica()
    replica.create(INBOX, b"1" * 16).append(b"r" * 16, b"Subject: r\r\n\r\n")
    before = deepcopy(replica)
    with dovecot() as server:
        server.save(USER, b"Subject: x\r\n\r\n")
        async with door(lambda _: replica) as address:
            done = await trio.to_thread.run_sync(lambda: server.run(*words, address))
        assert done.returncode == code, done
        assert len(server.mails(USER)) == 1
    assert replica == before
