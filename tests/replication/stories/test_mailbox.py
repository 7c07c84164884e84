"""`mailbox show` at nodes of a cluster: what is known here, and what other nodes answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Command, Mbox, Mismatch, RefusalCode, Refused, Reply
from protocol.values import Dot
from replicator.cli.stories.mailbox_lines import lines
from replicator.errors import FolderNotFoundError
from replicator.replication import timing
from replicator.replication.links.link import PeerLink
from replicator.replication.peer_requests import PeerRequests
from replicator.replication.stories.mailbox import answer_of
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.stories import MailboxStory
from tests.replication.cluster import EPOCH_MS, USER, Node, cluster
from tests.replication.log.truncating import checkpoint, forget_log
from tests.replication.stories.telling import heal, link_apart, part, stories_at
from tests.replication.tasks.partition import fork


async def shown(node: Node, name: str = "INBOX") -> MailboxStory:
    return await stories_at(node).mailbox(USER, name)


def answers(story: MailboxStory) -> dict[str, str]:
    return {one.node: one.shows for one in story.nodes}


def told(story: MailboxStory) -> str:
    return "\n".join(lines(story))


async def test_numbers_are_those_of_the_mailbox(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for body in ("one", "two", "three"):
            await nodes["dc1"].save(body)
        await nodes["dc1"].flag(2)
        await nodes["dc1"].expunge(1)
        await nodes.converged()
        story, folder = await shown(nodes["dc2"]), await nodes["dc2"].inbox()
        assert (story.node, story.user, story.mailbox, story.is_deleted) == ("dc2", USER, "INBOX", False)
        assert (story.mailbox_id, story.uidvalidity, story.risen) == (folder.mailbox_id.hex(), folder.uidvalidity, 0)
        assert (story.uidnext, story.highestmodseq) == (4, 5)
        assert (story.messages, story.unseen, story.size_bytes) == (2, 1, 8)
        assert story.head == f"{nodes['dc1'].store.origin} {nodes['dc1'].store.context[nodes['dc1'].store.origin]}"
        assert (story.is_head_logged, story.head_ms is not None) == (True, True)
        assert (story.kept_messages, story.kept_bytes, story.kept_since_ms is not None) == (1, 3, True)
        assert (story.waiting, story.branches, story.abandoned, story.waiting_entries) == (0, 0, 0, ())
        assert not story.is_unproven
        assert not story.is_postponed
        assert answers(story) == {"dc1": "same", "dc3": "same"}
        assert "1 message kept, 3 B, the first until 2023-" in told(story)
        assert "waiting        no entries" in told(story)


async def test_master_is_named_with_its_tenure(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("x")
        began_ms = (await shown(nodes["dc1"])).master_since_ms
        await trio.sleep(60)
        named = await shown(nodes["dc1"])
        assert (named.master, named.master_how, named.master_since_ms) == ("dc1", "named", began_ms)
        assert began_ms is not None
        assert 0 <= began_ms - EPOCH_MS < 60_000
        assert "master         dc1, since 2023-" in told(named)
        assert ", when it asked for a master and no node was it" in told(named)
        assert (await shown(nodes["dc3"])).master is None
        assert "master         - (dc3 has needed none in this term)" in told(await shown(nodes["dc3"]))
        await nodes["dc2"].save("y")
        assert (await shown(nodes["dc2"])).master_how == "told"
        await nodes["dc2"].coordinator.handover.move_to(await nodes["dc2"].inbox(), "dc2")
        taken, given = await shown(nodes["dc2"]), await shown(nodes["dc1"])
        assert (taken.master, taken.master_how) == (given.master, "taken") == ("dc2", "taken")
        assert given.master_how == "given"
        assert given.master_since_ms == pytest.approx(EPOCH_MS + 60_000, abs=60_000)
        term = taken.term
        await part(nodes)
        anew = await shown(nodes["dc2"])
        assert anew.term > term
        assert (anew.master, anew.master_since_ms) == (None, None)


async def test_nodes_that_cannot_be_asked_are_named_with_the_reason(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("x")
        await nodes.converged()
        await part(nodes)
        story = await shown(nodes["dc1"])
        assert answers(story) == {"dc2": "unreachable", "dc3": "unreachable"}
        assert all(one.why for one in story.nodes)
        assert "dc2  cannot be asked: " in told(story)


async def test_node_that_does_not_answer_holds_nobody_up(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = PeerRequests.answer

    async def answer_late(requests: PeerRequests, link: PeerLink, command: Command) -> Reply:
        if isinstance(command, Mbox) and requests._mastership.sid == "dc3":
            await trio.sleep(30)
        return await answer(requests, link, command)

    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("x")
        await nodes.converged()
        monkeypatch.setattr(PeerRequests, "answer", answer_late)
        before = autojump_clock.current_time()
        story = await shown(nodes["dc1"])
        assert autojump_clock.current_time() - before == pytest.approx(timing.STORY_ASK_S, abs=0.1)
        assert answers(story) == {"dc2": "same", "dc3": "unreachable"}
        assert "dc3  cannot be asked: it has not answered within 3 s" in told(story)


async def test_other_nodes_are_behind_ahead_or_forked(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        with monkeypatch.context() as patched:
            await fork(nodes)
            await link_apart(nodes, patched)
            one, other = await shown(nodes["dc1"]), await shown(nodes["dc2"])
            assert answers(one) == {"dc2": "forked", "dc3": "forked"}
            assert answers(other) == {"dc1": "forked", "dc3": "same"}
            assert (one.waiting, one.branches, other.waiting, other.branches) == (3, 1, 2, 1)
            assert {waiting.node for waiting in one.waiting_entries} == {"dc2"}
            assert {waiting.lacks for waiting in one.waiting_entries} == {None}
            assert one.waiting_since_ms == min(waiting.time_ms for waiting in one.waiting_entries)
            assert "3 entries on 1 branch, the first from " in told(one)
            assert "is on another branch, which the master joins" in told(one)
            assert "forked: both show changes that the other does not" in told(one)
            assert one.why_apart is None
            key, merger = MailboxKey.of(await nodes["dc1"].inbox()), nodes["dc1"].coordinator.fork_merger
            head = next(iter(nodes["dc1"].store.waiting))
            await merger._keep_apart(key, head, "the merge would take too many UIDs")
            assert "cannot join    the merge would take too many UIDs" in told(await shown(nodes["dc1"]))
            merger.doubt(key)
        await heal(nodes)
        assert answers(await shown(nodes["dc1"])) == {"dc2": "same", "dc3": "same"}


async def test_node_without_the_mailbox_shows_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].mail.create_folder(USER, "Empty")
        await nodes.converged()
        assert answers(await shown(nodes["dc1"], "Empty")) == {"dc2": "same", "dc3": "same"}
        await part(nodes)
        await nodes["dc1"].save("x", "Empty")
        assert answers(await shown(nodes["dc2"], "Empty")) == {"dc1": "unreachable", "dc3": "same"}
        await nodes["dc1"].mail.create_folder(USER, "New")
        await nodes["dc1"].save("x", "New")
        await heal(nodes)
        assert (await shown(nodes["dc3"], "New")).messages == 1


async def test_entry_that_waits_for_a_missing_one_says_so(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        for body in "abc":
            await node.save(body)
        origin = node.store.origin
        chain = (await node.inbox()).mailbox_id
        waits = f"INSERT INTO waiting VALUES (x'{chain.hex()}', 'dc2.x', 7, '{origin}', 4)"
        node.damage("UPDATE log SET applied = 0 WHERE seq = 4", waits)
        story = await shown(node)
        [waiting] = story.waiting_entries
        assert (waiting.entry, waiting.lacks) == (f"{origin} 4", "dc2.x 7")
        assert "waits for dc2.x 7, which is not here" in told(story)
        node.damage("UPDATE log SET applied = 2 WHERE seq = 4")
        assert (await shown(node)).abandoned == 1
        assert "1 entry that no node can show any more" in told(await shown(node))
        node.damage("UPDATE log SET applied = 1 WHERE seq = 4", "DELETE FROM waiting")


async def test_checkpoint_tells_of_a_head_that_has_left_the_log(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("x")
        logged = await shown(node)
        assert logged.checkpoint is None
        await checkpoint(node)
        await forget_log(node)
        story = await shown(node)
        assert (story.is_head_logged, story.head_ms) == (False, logged.head_ms)
        assert (story.checkpoint, story.checkpoint_ms) == (story.head, logged.head_ms)
        assert "; its entry is not in the log" in told(story)
        await node.flag(1)
        assert (await shown(node)).checkpoint == logged.head
        chain = (await node.inbox()).mailbox_id.hex()
        node.damage(
            f"INSERT INTO unproven VALUES (x'{chain}', 9)",
            f"INSERT INTO postponed VALUES (x'{chain}', 'alice', 7, x'80', x'80')",
        )
        story = await shown(node)
        assert (story.is_unproven, story.is_postponed) == (True, True)
        assert "unproven       the state was taken over" in told(story)
        assert "postponed      the node has more to compare" in told(story)
        node.damage("DELETE FROM unproven", "DELETE FROM postponed")


async def test_deleted_folder_is_shown_as_such(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.mail.create_folder(USER, "Work")
        await node.save("x", "Work")
        await node.mail.delete_folder(USER, "Work")
        story = await shown(node, "Work")
        assert (story.is_deleted, story.messages, story.kept_messages) == (True, 0, 1)
        assert told(story).startswith("alice's Work (deleted) at dc1\n")
        assert told(story).endswith("Other nodes\n  none are configured")
        with_mail = "alice's Work (deleted; shown as long as it has mail) at dc1\n"
        assert told(replace(story, messages=1)).startswith(with_mail)
        with pytest.raises(FolderNotFoundError, match="alice has no folder 'Nowhere' at dc1"):
            await shown(node, "Nowhere")


@pytest.mark.parametrize(
    ("theirs", "shows"),
    [
        ((Dot("dc1.a", 3), Dot("dc2.a", 2)), "differs"),
        ((Dot("dc1.a", 3),), "behind"),
        ((Dot("dc1.a", 2), Dot("dc2.a", 2)), "behind"),
        ((Dot("dc1.a", 3), Dot("dc2.a", 2), Dot("dc3.a", 1)), "ahead"),
        ((Dot("dc1.a", 2), Dot("dc3.a", 1)), "forked"),
    ],
)
def test_answer_says_who_lacks_what(theirs: tuple[Dot, ...], shows: str) -> None:
    mine = Chain(b"m" * 16, USER, 7, head=Dot("dc1.a", 3), context={"dc1.a": 3, "dc2.a": 2})
    told_by = answer_of("dc2", mine, Mismatch(("head",), theirs[0], theirs))
    assert (told_by.shows, told_by.head) == (shows, f"dc1.a {theirs[0].seq}")
    assert answer_of("dc2", mine, Mismatch(("head",), None, ())).shows == "nothing"
    refused = answer_of("dc2", mine, Refused(RefusalCode.UNAVAILABLE, "the disk is full"))
    assert (refused.shows, refused.why) == ("unreachable", "the disk is full")
