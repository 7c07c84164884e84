"""UID conflicts, as clients see them: both sides of a broken link give one UID to different mails."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.config import UidConflict
from replicator.imap.selection import MailboxGoneError, Selection
from replicator.mail.mailstore import INBOX
from tests.imap.client import Client, connected, services
from tests.replication.cluster import Cluster, Node, cluster

BOTH = pytest.mark.parametrize("uid", list(UidConflict))
SIDES = ("dc1",), ("dc2", "dc3")


@dataclass
class Session:
    """A client that has selected INBOX, with the values from the responses to SELECT."""

    client: Client
    uidvalidity: int
    uidnext: int
    exists: int = 0

    async def append(self, body: str) -> int:
        (*_, done) = await self.client.run(f"APPEND INBOX {{{len(body)}+}}\r\n{body}")
        found = re.search(r"APPENDUID (\d+) (\d+)", done)
        assert found
        assert int(found[1]) == self.uidvalidity
        return int(found[2])

    async def expunge(self, uid: int) -> None:
        assert "t OK" in (await self.client.run(f"UID STORE {uid} +FLAGS (\\Deleted)"))[-1]
        assert "t OK" in (await self.client.run("EXPUNGE"))[-1]

    async def bodies(self) -> dict[int, str]:
        """Return UID -> body of all messages."""
        lines = await self.client.run("UID FETCH 1:* (UID BODY.PEEK[])")
        answer = "\n".join(lines)
        return {int(uid): body for uid, body in re.findall(r'UID (\d+) BODY\[\] "(.*)"\)', answer)}


@asynccontextmanager
async def session(node: Node) -> AsyncIterator[Session]:
    async with connected(services(node.mail)) as client:
        await client.log_in("alice")
        said = "\n".join(await client.run("SELECT INBOX"))
        uidvalidity, uidnext = (re.search(rf"{name} (\d+)", said) for name in ("UIDVALIDITY", "UIDNEXT"))
        assert uidvalidity
        assert uidnext
        yield Session(client, int(uidvalidity[1]), int(uidnext[1]))


@asynccontextmanager
async def parted(directory: Path, clock: MockClock, uid: UidConflict) -> AsyncIterator[Cluster]:
    """Run nodes that all have the mail "x" under UID 1, and isolate dc1."""
    async with cluster(directory, clock, uid=uid) as nodes:
        await nodes["dc1"].save("x")
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(*SIDES)
        yield nodes


async def heal(nodes: Cluster) -> None:
    nodes.rejoin("dc1")
    await nodes.linked()
    await nodes.converged()


async def check_ends_for_new_uidvalidity(one: Session) -> None:
    """Check that the session ends before it hears of UIDs of another UIDVALIDITY."""
    said = await one.client.run("NOOP")
    assert said == ["* BYE Mailbox 'INBOX' has a new UIDVALIDITY; connect and select it again", ""]


@BOTH
async def test_two_mails_of_one_uid_both_get_new_uids(
    tmp_path: Path, autojump_clock: MockClock, uid: UidConflict
) -> None:
    async with parted(tmp_path, autojump_clock, uid) as nodes:
        async with session(nodes["dc1"]) as here, session(nodes["dc2"]) as there:
            assert here.uidvalidity == there.uidvalidity
            assert await here.append("y") == 2
            await trio.sleep(1)
            assert await there.append("z") == 2
            assert (await here.bodies(), await there.bodies()) == ({1: "x", 2: "y"}, {1: "x", 2: "z"})
            await heal(nodes)
            if uid is UidConflict.UIDVALIDITY:
                for one in (here, there):
                    await check_ends_for_new_uidvalidity(one)
            else:
                for one in (here, there):
                    said = await one.client.run("NOOP")
                    assert said[:2] == ["* 2 EXPUNGE", "* 3 EXISTS"]
                    bodies = await one.bodies()
                    assert bodies.pop(1) == "x"
                    assert (sorted(bodies), sorted(bodies.values())) == ([3, 4], ["y", "z"])
        found = []
        for node in nodes.all():
            async with session(node) as again:
                assert (again.uidvalidity > here.uidvalidity) == (uid is UidConflict.UIDVALIDITY)
                found.append((again.uidvalidity, again.uidnext, await again.bodies()))
        assert found[0] == found[1] == found[2]
        if uid is UidConflict.UIDVALIDITY:
            assert found[0][0] == here.uidvalidity + 1, "the next UIDVALIDITY was free"
            assert found[0][2] == {3: "x", 4: "y", 5: "z"}, "in log order"
        async with session(nodes["dc3"]) as later:
            assert await later.append("after") == later.uidnext


async def test_large_merge_shows_no_new_uids_before_sessions_end(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.mail.view.STEP_WORK", 5)
    async with parted(tmp_path, autojump_clock, UidConflict.UIDVALIDITY) as nodes:
        here = nodes["dc1"]
        for number in range(30):
            await here.save(f"here {number}")
            await nodes["dc2"].save(f"there {number}")
        selection = await Selection.open(here.mail, await here.mail.folder("alice", INBOX), read_only=True)

        async def idle() -> None:
            with suppress(MailboxGoneError):
                while True:
                    await selection.wait()
                    assert not list(selection.announce(expunges=True))
            selection.close()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(idle)
                await heal(nodes)


@BOTH
async def test_mail_gets_a_new_uid_if_an_expunged_mail_had_the_same_one(
    tmp_path: Path, autojump_clock: MockClock, uid: UidConflict
) -> None:
    async with parted(tmp_path, autojump_clock, uid) as nodes:
        async with session(nodes["dc1"]) as here, session(nodes["dc2"]) as there:
            assert await here.append("y") == 2
            assert await there.append("z") == 2
            await there.expunge(2)
            await heal(nodes)
            if uid is UidConflict.UIDVALIDITY:
                for one in (here, there):
                    await check_ends_for_new_uidvalidity(one)
        found = []
        for node in nodes.all():
            async with session(node) as again:
                assert (again.uidvalidity > here.uidvalidity) == (uid is UidConflict.UIDVALIDITY)
                found.append((again.uidvalidity, again.uidnext, await again.bodies()))
        assert found[0] == found[1] == found[2]
        assert found[0][2] == ({1: "x", 3: "y"} if uid is UidConflict.RENUMBER else {3: "x", 4: "y"})


@BOTH
async def test_merge_of_flags_keeps_uids_and_uidvalidity(
    tmp_path: Path, autojump_clock: MockClock, uid: UidConflict
) -> None:
    async with parted(tmp_path, autojump_clock, uid) as nodes, session(nodes["dc1"]) as here:
        await nodes["dc2"].flag(1)
        await nodes["dc1"].flag(1, added=["\\Flagged"])
        assert await here.append("y") == 2
        await heal(nodes)
        assert await here.bodies() == {1: "x", 2: "y"}
        for node in nodes.all():
            folder = await node.mail.folder("alice", INBOX)
            assert folder.uidvalidity == here.uidvalidity
            assert (await node.view()).messages[1].flags == {"\\Seen", "\\Flagged"}


async def test_uidvalidity_rises_with_each_conflict_and_never_falls(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with parted(tmp_path, autojump_clock, UidConflict.UIDVALIDITY) as nodes:
        known = [(await nodes["dc1"].inbox()).uidvalidity]
        for turn in range(3):
            for sid in ("dc1", "dc2"):
                await nodes[sid].save(f"{turn} at {sid}")
            await heal(nodes)
            risen = {(await node.inbox()).uidvalidity for node in nodes.all()}
            assert len(risen) == 1
            known += risen
            assert known == sorted(set(known))
            nodes.isolate("dc1")
            await nodes.linked(*SIDES)
        await nodes["dc1"].mail.rename_folder("alice", INBOX, "Old")
        assert (await nodes["dc1"].mail.folder("alice", "Old")).uidvalidity == known[-1]
        assert (await nodes["dc1"].inbox()).uidvalidity > known[-1]
        await heal(nodes)


async def test_risen_uidvalidity_survives_a_restart(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with parted(tmp_path, autojump_clock, UidConflict.UIDVALIDITY) as nodes:
        for sid in ("dc1", "dc2"):
            await nodes[sid].save(f"at {sid}")
        await heal(nodes)
        uidvalidity = (await nodes["dc3"].inbox()).uidvalidity
        await nodes.stop("dc3")
        await nodes.start("dc3")
        await nodes.linked()
        async with session(nodes["dc3"]) as again:
            assert again.uidvalidity == uidvalidity
            assert await again.append("after") == again.uidnext
        await nodes.converged()
