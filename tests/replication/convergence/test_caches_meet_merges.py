"""A mail program's cache from one node is brought up to date by any other (QRESYNC, RFC 7162 sections 3.2.5 and 6)."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.config import UidConflict
from tests.effort import examples
from tests.imap.client import Client, connected, services
from tests.replication.cluster import USER, Cluster, Node, cluster

FLAGS = ("\\Seen", "\\Flagged", "work", "home")
CHANGED = re.compile(r"\* \d+ FETCH \(UID (\d+) FLAGS \((.*?)\)(?: MODSEQ \((\d+)\))?\)")


@dataclass
class MailProgram:
    """A client that keeps the flags of all messages by UID, and hears only of changes. `tells`: what it says it knows.

    The MODSEQ of a mailbox that it does not know is 1.
    """

    tells: str
    uidvalidity: int = 0
    uidnext: int = 1
    modseq: int = 1
    flags: dict[int, frozenset[str]] = field(default_factory=dict)

    def hear(self, lines: list[str]) -> None:
        """Learn from the responses to one command (section 6)."""
        seen, told = self.modseq, None
        for line in lines:
            if found := CHANGED.fullmatch(line):
                self.flags[int(found[1])] = frozenset(found[2].split()) - {"\\Recent"}
                seen = max(seen, int(found[3] or 0))
            elif found := re.fullmatch(r"\* VANISHED (\(EARLIER\) )?([0-9:,]+)", line):
                gone = [[int(end) for end in run.split(":")] for run in found[2].split(",")]
                assert found[1] or all(uid in self.flags for run in gone for uid in range(run[0], run[-1] + 1))
                for uid in [uid for uid in self.flags if any(run[0] <= uid <= run[-1] for run in gone)]:
                    del self.flags[uid]
            elif found := re.search(r"\[HIGHESTMODSEQ (\d+)\]", line):
                told = int(found[1])
        self.modseq = seen if told is None else told

    async def open(self, client: Client) -> None:
        """Select INBOX, and bring the cache up to date."""
        assert await client.run("ENABLE QRESYNC") == ["* ENABLED QRESYNC", "t OK Enabled"]
        known = UidSet.of(self.flags)
        sample = f" (1:{len(known)} {known})" if known and self.tells == "samples" else ""
        uids = f" {known}" if known and self.tells != "nothing" else ""
        lines = await client.run(f"SELECT INBOX (QRESYNC ({self.uidvalidity or 1} {self.modseq}{uids}{sample}))")
        assert lines[-1].startswith("t OK")
        said = "\n".join(lines)
        uidvalidity, uidnext = (int(found) for found in re.findall(r"(?:UIDVALIDITY|UIDNEXT) (\d+)", said))
        if uidvalidity != self.uidvalidity:
            self.uidvalidity, self.uidnext, self.modseq, self.flags = uidvalidity, 1, 1, {}
        self.hear(lines)
        await self.fetch_new(client, uidnext)

    async def fetch_new(self, client: Client, uidnext: int) -> None:
        if uidnext > self.uidnext:
            self.hear(await client.run(f"UID FETCH {self.uidnext}:{uidnext - 1} (UID FLAGS)"))
        self.uidnext = uidnext


@asynccontextmanager
async def session(node: Node) -> AsyncIterator[Client]:
    async with connected(services(node.mail)) as client:
        await client.log_in(USER)
        yield client


async def check(program: MailProgram, node: Node) -> None:
    """Bring the cache up to date, which must then be the mailbox."""
    async with session(node) as client:
        await program.open(client)
    view = await node.view()
    assert program.flags == {uid: message.flags for uid, message in view.messages.items()}
    assert program.modseq == max(1, view.highestmodseq)


async def change(dice: random.Random, node: Node) -> None:
    """Change the mailbox at this node."""
    view = await node.view()
    uids = dice.sample([*view.messages], min(len(view.messages), dice.randint(1, 3)))
    what = dice.random()
    if what < 0.4 or not uids:
        await node.save(f"{dice.random()}")
    elif what < 0.7:
        await node.flag(*uids, added=[dice.choice(FLAGS)])
    elif what < 0.8:
        await node.mail.store_flags(view, UidSet.of(uids), removed=frozenset(FLAGS))
    else:
        await node.expunge(*uids)


async def changes(dice: random.Random, nodes: Cluster) -> None:
    for _ in range(dice.randint(1, 6)):
        await change(dice, dice.choice(nodes.all()))


async def new_disk(nodes: Cluster, sid: str) -> None:
    await nodes.stop(sid)
    nodes.erase(sid)
    await nodes.start(sid)
    await nodes.linked()
    await nodes.converged()


@pytest.mark.parametrize("uid", list(UidConflict))
@pytest.mark.parametrize("seed", range(examples(2, 12)))
async def test_cache_from_any_node_is_brought_up_to_date_by_any_other(
    tmp_path: Path, autojump_clock: MockClock, uid: UidConflict, seed: int
) -> None:
    dice = random.Random(seed)
    programs = [MailProgram(tells) for tells in ("nothing", "uids", "samples") for _ in range(2)]
    async with cluster(tmp_path, autojump_clock, uid=uid) as nodes:
        for _ in range(2):
            await changes(dice, nodes)
            await nodes.converged()
            nodes.isolate("dc1")
            await nodes.linked(["dc1"], ["dc2", "dc3"])
            await changes(dice, nodes)
            for program in programs:  # a cache of either branch
                await check(program, dice.choice(nodes.all()) if program.modseq == 1 else nodes["dc1"])
            await changes(dice, nodes)
            nodes.rejoin("dc1")
            await nodes.linked()
            await nodes.converged()
            if dice.random() < 0.5:
                await new_disk(nodes, dice.choice(["dc1", "dc2", "dc3"]))
            for program in programs:
                await check(program, dice.choice(nodes.all()))


async def test_session_that_stays_open_over_a_merge_leaves_a_cache_for_other_nodes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Announcements of the merge in the open session, and its HIGHESTMODSEQ, are enough for the next node."""
    dice = random.Random(1)
    program = MailProgram("uids")
    async with cluster(tmp_path, autojump_clock) as nodes:
        for _ in range(4):
            await nodes["dc1"].save("both")
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        async with session(nodes["dc1"]) as client:
            await program.open(client)
            for sid in ("dc1", "dc2"):
                await nodes[sid].save(sid)
                await nodes[sid].flag(2, added=[sid])
            await nodes["dc2"].expunge(1)
            nodes.rejoin("dc1")
            await nodes.linked()
            await nodes.converged()
            program.hear(await client.run("FETCH 2 (FLAGS)"))  # VANISHED must wait, and holds HIGHESTMODSEQ back
            heard = program.modseq
            program.hear(await client.run("NOOP"))
            assert heard < program.modseq
            assert 1 not in program.flags
        await changes(dice, nodes)
        await nodes.converged()
        await check(program, nodes["dc3"])


async def test_node_that_is_behind_shows_its_own_state_to_a_client_that_has_seen_more(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A MODSEQ above the node's is not believed: the client hears of all that this node shows."""
    program = MailProgram("uids")
    async with cluster(tmp_path, autojump_clock) as nodes:
        for _ in range(4):
            await nodes["dc1"].save("both")
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await nodes["dc1"].expunge(3)
        await nodes["dc1"].flag(1, 2)
        await nodes["dc1"].save("later")
        await check(program, nodes["dc1"])
        assert set(program.flags) == {1, 2, 4, 5}
        async with session(nodes["dc3"]) as client:
            await program.open(client)
        assert {uid: program.flags[uid] for uid in (1, 2, 4)} == {1: frozenset(), 2: frozenset(), 4: frozenset()}
        assert 5 not in program.flags
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()
        await check(program, nodes["dc3"])


async def test_conditional_store_at_a_node_that_is_not_the_master(tmp_path: Path, autojump_clock: MockClock) -> None:
    """UNCHANGEDSINCE is compared where the mailbox is numbered (RFC 7162 section 3.1.3)."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        for _ in range(3):
            await nodes["dc1"].save("mail")
        await nodes.converged()
        async with session(nodes["dc3"]) as here, session(nodes["dc2"]) as there:
            for client in (here, there):
                assert "t OK" in (await client.run("SELECT INBOX (CONDSTORE)"))[-1]
            assert (await there.run("UID STORE 2 (UNCHANGEDSINCE 3) +FLAGS.SILENT (first)"))[-1].startswith("t OK")
            told = await here.run("UID STORE 1:3 (UNCHANGEDSINCE 3) +FLAGS.SILENT (second)")
            assert told[-1].startswith("t OK [MODIFIED 2] ")
            assert [line for line in told if "FETCH" in line] == [
                "* 1 FETCH (UID 1 MODSEQ (5))",
                "* 2 FETCH (UID 2 FLAGS (\\Recent first) MODSEQ (4))",
                "* 3 FETCH (UID 3 MODSEQ (5))",
            ]
