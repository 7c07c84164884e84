"""Nodes recover without a restart from wrong statements, such as those that a connection has changed."""

import logging
import re
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import LinkAdvert, Settled
from protocol.values import Dot, UidSet
from replicator.replication import timing
from replicator.replication.convergence import fork_merge
from replicator.replication.convergence.fork_merge import ForkMerger, _Apart
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.store.log.apply import receive
from resync.entry import DIGEST_BYTES, Entry, FlagAdd
from tests.effort import first
from tests.master_election.adverts import adverts_of
from tests.replication.cluster import Cluster, Node, cluster, entries_as_commands, until

HEALED_S = 180.0
FAR = 1 << 36


def links_of(nodes: Cluster) -> list[object]:
    return [link for node in nodes.all() for link in node.coordinator.connections.links]


async def check_become_equal(nodes: Cluster, links: list[object], within_s: float = HEALED_S) -> None:
    """Check that all nodes show the same within the time, and that no link has ended."""
    with trio.fail_after(within_s):
        await nodes.converged()
    assert [id(link) for link in links_of(nodes)] == [id(link) for link in links]


async def test_log_requested_from_a_too_late_position_is_requested_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The receiver sees no gap, because no entry follows those that are not sent."""
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.cut(("dc1", "dc3"))
        await nodes.linked()
        origin = nodes["dc1"].store.origin
        nodes.network.cut(("dc2", "dc3"))
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        for number in range(3):
            await nodes["dc1"].save(f"{number}")
        end = nodes["dc1"].store.context[origin]
        claim = rb"(LOG \([^\r]*?" + re.escape(origin.encode()) + rb":)[0-9]+"
        ways = [("dc3", "dc1"), ("dc3", "dc2")]
        lines = [nodes.network.change(way, claim, lambda found: found[1] + b"%d" % end) for way in ways]
        nodes.rejoin("dc3")
        await nodes.linked()
        links = links_of(nodes)
        await check_become_equal(nodes, links)
        assert all(line.done for line in lines)


async def test_entries_acknowledged_by_mistake_are_sent_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        origin, links = nodes["dc1"].store.origin, links_of(nodes)
        sender = nodes["dc1"].coordinator.feeds["dc2"].sender
        sender.acknowledged[origin] = nodes["dc1"].store.context[origin] + 1  # like a changed ACK
        await nodes["dc1"].save("second")
        await nodes["dc1"].save("third")
        await check_become_equal(nodes, links, within_s=5)  # the receiver sends a LOG because of the gap
        assert sorted((await nodes["dc2"].bodies()).values()) == ["first", "second", "third"]


async def test_entry_changed_on_its_way_is_sent_again(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the entry changes on its way. Its digest shows that, and the next link brings it again."""
    entries_as_commands(monkeypatch)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        line = nodes.network.change(
            ("dc1", "dc2"), rb"ENTRY \(([^ :]+):[0-9]+", lambda found: b"ENTRY (%s:1" % found[1]
        )
        await nodes["dc1"].save("second")
        with trio.fail_after(HEALED_S):
            await nodes.converged()
        assert line.done


@pytest.mark.parametrize("command", first(1, [b"LOG", b"RANGES", b"ROWS"]))
async def test_node_does_not_wait_for_ever_for_a_lost_reply(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, command: bytes
) -> None:
    """The tag of the request changes on its way, so that the reply does not match it."""
    monkeypatch.setattr(fork_merge, "SHORT_MODSEQ", 0)  # forks are merged by SYNC
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.cut(("dc1", "dc2"))
        await nodes.linked(["dc1"], ["dc2"])
        for node in nodes.all():
            await node.save(node.sid)
        tagged = rb"(?:\A|(?<=\n))r[0-9]+ " + command
        lines = [
            nodes.network.change(way, tagged, lambda found: b"x" + found[0]) for way in (("dc1", "dc2"), ("dc2", "dc1"))
        ]
        for line in lines:
            line.until = trio.current_time() + 20
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        await check_become_equal(nodes, links_of(nodes))
        assert any(line.done for line in lines)
        await nodes["dc1"].save("last")
        await nodes.converged()


async def test_advert_with_a_huge_number_is_overruled(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The advert has a wrong priority too, so the nodes disagree about their root until it is overruled."""
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        table = nodes["dc2"].coordinator.mastership.table
        known = adverts_of(table)["dc1"]
        elections = nodes["dc2"].coordinator.elections
        elections._links_changed(
            table.receive([LinkAdvert(known.origin, 500, known.sequence + FAR, known.neighbours)], "dc1")
        )
        assert elections.machine.root == "dc2"
        await until(lambda: elections.machine.root == "dc1" and elections.machine.settled, HEALED_S)
        await nodes["dc2"].save("text")
        await nodes.converged()


async def test_settled_with_a_huge_number_is_overruled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("text")
        await nodes.converged()
        await trio.sleep(30)
        settled_logs = nodes["dc2"].coordinator.settled_logs
        origin = nodes["dc1"].store.origin
        said = settled_logs._said["dc1"]
        settled_logs._take(Settled("dc1", said.sequence + FAR, (Dot(origin, 1),)), "dc1")
        await trio.sleep(60)
        assert settled_logs.known()["dc1"] == nodes["dc1"].store.settled()


async def test_failed_merge_is_tried_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.cut(("dc1", "dc2"))
        await nodes.linked(["dc1"], ["dc2"])
        for node in nodes.all():
            await node.save(node.sid)
        heads = [chain.head for node in nodes.all() for chain in await chains_of(node)]
        for node in nodes.all():
            for head in heads:
                assert head is not None
                node.coordinator.fork_merger._apart[head] = _Apart(b"", "a lie", trio.current_time() + 40, 40)
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        await check_become_equal(nodes, links_of(nodes))


async def chains_of(node: Node) -> list[Chain]:
    return await node.store.read(lambda reader: list(queries.chains_of(reader, None)))


async def test_applied_entry_that_counts_as_waiting_is_forgotten(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        node = nodes["dc2"]
        chain = next(chain for chain in await chains_of(node) if chain.uidvalidity)
        assert chain.head is not None
        node.store.waiting.add(chain.head, chain.id)
        assert node.store.has_waiting(chain.id)
        await trio.sleep(2 * timing.OVERDUE_S)
        assert not node.store.has_waiting(chain.id)
        assert node.store.settled() == nodes["dc1"].store.settled()
        assert "was counted as waiting" in caplog.text


async def test_overdue_entries_are_reported_and_their_state_adopted(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The named predecessor does not exist, so only adopting another node's state ends the waiting."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Entry, "digest", lambda _: bytes(DIGEST_BYTES))  # so that nobody notices the change
    entries_as_commands(monkeypatch)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        links = links_of(nodes)
        line = nodes.network.change(
            ("dc1", "dc2"), rb"(ENTRY \([^ ]+ \([^ :]+:)[0-9]+", lambda found: found[1] + b"%d" % FAR
        )
        await nodes["dc1"].save("second")
        await nodes["dc1"].save("third")
        await trio.sleep(timing.OVERDUE_S - 10)
        assert line.done
        status = await nodes["dc2"].report.node_status()
        assert status.waiting_entries == 2
        assert not status.overdue
        await check_become_equal(nodes, links)
        assert sorted((await nodes["dc2"].bodies()).values()) == ["first", "second", "third"]
        said = f"2 entries of folder 'INBOX' of alice have waited for more than 30 s: predecessor {FAR} of "
        assert said in caplog.text
        await trio.sleep(10)
        assert "no entries of folder 'INBOX' of alice are overdue any more" in caplog.text
        assert not (await nodes["dc2"].report.node_status()).overdue


@pytest.mark.long
@pytest.mark.parametrize("longest_s", [timing.OVERDUE_AMONG_OTHERS_S, 2 * timing.OVERDUE_S])
async def test_entries_that_wait_for_their_turn_are_not_overdue_for_long(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, longest_s: float
) -> None:
    """Mailboxes that have forked are joined one after the other, in three times as long as an entry may wait else."""
    users = [f"user{number}" for number in range(9)]
    turn, a_join_s = trio.Lock(), timing.OVERDUE_S / 3
    join = ForkMerger.join_branches

    async def join_slowly(self: ForkMerger, key: MailboxKey) -> None:
        async with turn:
            await trio.sleep(a_join_s)
            await join(self, key)

    monkeypatch.setattr(timing, "OVERDUE_AMONG_OTHERS_S", longest_s)
    monkeypatch.setattr(ForkMerger, "join_branches", join_slowly)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        for user in users:
            await nodes["dc1"].save("first", user=user)
        await nodes.converged()
        nodes.isolate("dc2")
        await nodes.linked(["dc1"], ["dc2"])
        for user in users:
            for node in nodes.all():
                await node.save(f"at {node.sid}", user=user)
        nodes.rejoin("dc2")
        await nodes.linked()
        began = trio.current_time()
        await nodes.converged()
        assert trio.current_time() - began > 2 * timing.OVERDUE_S
        doubts = sum(node.coordinator.overdue_entries.doubts for node in nodes.all())
        assert (doubts > 0) is (longest_s == 2 * timing.OVERDUE_S)


async def test_entry_that_nobody_joins_is_overdue_soon_after_the_last_of_the_others(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = [f"user{number}" for number in range(6)]
    join, join_shown, is_stuck = ForkMerger.join_branches, ForkMerger.join_shown, True

    async def join_most(self: ForkMerger, key: MailboxKey) -> None:
        if key.user != users[0]:
            await trio.sleep(timing.OVERDUE_S)
            await join(self, key)
        elif not is_stuck:
            await join(self, key)

    async def join_most_shown(self: ForkMerger, key: MailboxKey, sid: str) -> bool | None:
        return None if is_stuck and key.user == users[0] else await join_shown(self, key, sid)

    monkeypatch.setattr(ForkMerger, "join_branches", join_most)
    monkeypatch.setattr(ForkMerger, "join_shown", join_most_shown)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        for user in users:
            await nodes["dc1"].save("first", user=user)
        await nodes.converged()
        nodes.isolate("dc2")
        await nodes.linked(["dc1"], ["dc2"])
        for user in users:
            for node in nodes.all():
                await node.save(f"at {node.sid}", user=user)
        nodes.rejoin("dc2")
        await nodes.linked()
        await until(lambda: all(node.store.waiting.chains == 1 for node in nodes.all()))
        assert not any(node.coordinator.overdue_entries.doubts for node in nodes.all())
        await trio.sleep(timing.OVERDUE_S + 3 * timing.OVERDUE_LOOK_EVERY_S)
        assert any(node.coordinator.overdue_entries.doubts for node in nodes.all())
        is_stuck = False
        await nodes.converged()


@pytest.mark.long
async def test_entries_that_can_never_be_applied_are_abandoned_together(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    users = [f"user{number}" for number in range(1, 11)]
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        for user in users:
            await nodes["dc1"].save("first", user=user)
        await nodes.converged()
        node, flagged = nodes["dc1"], (FlagAdd(UidSet.of([1]), ("\\Seen",)),)
        for number, user in enumerate(users, 1):
            key = MailboxKey.of(await node.view(user=user))
            before = Dot("dc8.lost", number)
            waits = Entry(Dot("dc9.lost", number), (before,), node.store.last_time + 1, 9, *key, flagged)
            await node.store.write(partial(receive, entry=waits, bodies=[]))
        await trio.sleep(timing.OVERDUE_S + timing.OVERDUE_ABANDON_S + 3 * timing.OVERDUE_PAUSE_MIN_S)
        assert not await node.waiting()


async def test_no_entry_becomes_overdue_while_a_node_is_away(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        await nodes.stop("dc3")
        node = nodes["dc2"]
        chain = next(chain for chain in await chains_of(node) if chain.uidvalidity)
        assert chain.head is not None
        node.store.waiting.add(chain.head, chain.id)
        await trio.sleep(3 * timing.OVERDUE_S)
        assert node.store.has_waiting(chain.id)
        assert node.coordinator.overdue_entries.doubts == 0
        await nodes.start("dc3")
        await nodes.linked()
        await trio.sleep(2 * timing.OVERDUE_S)
        assert not node.store.has_waiting(chain.id)


@pytest.mark.long
async def test_overdue_entry_stays_overdue_while_a_node_is_away(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        node, key = nodes["dc1"], MailboxKey.of(await nodes["dc1"].view())
        flagged = (FlagAdd(UidSet.of([1]), ("\\Seen",)),)
        waits = Entry(Dot("dc9.lost", 1), (Dot("dc8.lost", 7),), node.store.last_time + 1, 9, *key, flagged)
        await node.store.write(partial(receive, entry=waits, bodies=[]))
        await trio.sleep(timing.OVERDUE_S + 2 * timing.OVERDUE_LOOK_EVERY_S)
        why = {"predecessor 7 of dc8.lost is missing at this node": 1}
        assert (await node.report.node_status()).overdue == why
        await nodes.stop("dc3")
        await nodes.linked(["dc1", "dc2"])
        doubts = node.coordinator.overdue_entries.doubts
        await trio.sleep(timing.OVERDUE_ABANDON_S + timing.OVERDUE_S)
        assert await node.waiting() == 1
        assert (await node.report.node_status()).overdue == why
        assert node.coordinator.overdue_entries.entries(of_branches=False) == 1
        assert node.coordinator.overdue_entries.doubts == doubts
        assert "overdue any more" not in caplog.text
        await nodes.start("dc3")
        await nodes.linked()
        await trio.sleep(timing.OVERDUE_S - timing.OVERDUE_LOOK_EVERY_S)
        assert (await node.report.node_status()).overdue == why
        await trio.sleep(timing.OVERDUE_ABANDON_S + timing.OVERDUE_S)
        assert not await node.waiting()
        assert not (await node.report.node_status()).overdue
        assert "no entries of folder 'INBOX' of alice are overdue any more" in caplog.text
