"""A client that goes to another node sees there what it has heard OK for (design section 8)."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.replication import timing
from replicator.store.db.queries import MailboxKey
from tests.effort import spread
from tests.imap.client import connected, services
from tests.replication.cluster import USER, Cluster, Node, cluster

LINE_S = 0.05


async def lines_of(node: Node, *commands: str) -> list[str]:
    """Return what a new IMAP session at the node is told in answer to these commands."""
    told: list[str] = []
    async with connected(services(node.mail)) as client:
        await client.log_in(USER)
        for command in commands:
            told += await client.run(command)
    return told


async def slow_lines(nodes: Cluster, author: str) -> None:
    """Make the lines between the nodes slow; what the author's log brings to dc3 takes longest."""
    for sid in ("dc1", "dc2", "dc3"):
        for other in {"dc1", "dc2", "dc3"} - {sid}:
            nodes.network.road(sid, other).delay_s = LINE_S / 5
    nodes.network.road(author, "dc3").delay_s = LINE_S


@pytest.mark.parametrize("author", ["dc1", "dc2"])
async def test_a_session_elsewhere_shows_what_was_acknowledged(
    tmp_path: Path, autojump_clock: MockClock, author: str
) -> None:
    """With two copies, OK says nothing of the third node: its entry may still be on its way."""
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")  # dc1 masters the mailbox
        await nodes.converged()
        await slow_lines(nodes, "dc1")
        await nodes[author].save("second")
        assert len(await nodes["dc3"].messages()) == 1, "the entry is here already, and nothing is tested"
        assert "* 2 EXISTS" in await lines_of(nodes["dc3"], "SELECT INBOX")
        await nodes[author].save("third")
        assert any("MESSAGES 3" in line for line in await lines_of(nodes["dc3"], "STATUS INBOX (MESSAGES)"))


@pytest.mark.parametrize("command", ["NOOP", "CHECK"])
async def test_an_open_session_is_told_when_it_asks(tmp_path: Path, autojump_clock: MockClock, command: str) -> None:
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        await slow_lines(nodes, "dc1")
        async with connected(services(nodes["dc3"].mail)) as client:
            await client.log_in(USER, "INBOX")
            await nodes["dc1"].save("second")
            assert "* 2 EXISTS" in await client.run(command)


async def test_folders_that_were_made_elsewhere_are_there(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        await slow_lines(nodes, "dc1")
        await nodes["dc1"].mail.create_folder(USER, "Work")
        await nodes["dc1"].save("in it", "Work")
        assert "* 1 EXISTS" in await lines_of(nodes["dc3"], "SELECT Work")
        await nodes["dc1"].mail.create_folder(USER, "Later")
        await nodes["dc1"].mail.subscribe(USER, "Later", subscribed=True)
        assert '* LIST (\\HasNoChildren) "/" "Later"' in await lines_of(nodes["dc3"], 'LIST "" *')
        await nodes["dc1"].mail.subscribe(USER, "Work", subscribed=True)
        assert '* LSUB () "/" "Work"' in await lines_of(nodes["dc3"], 'LSUB "" *')


@pytest.mark.parametrize(
    ("changes", "command", "answer"),
    spread(
        6,
        [
            (["CREATE Work"], "COPY 1 Work", "t OK [COPYUID"),
            (["CREATE Work"], "MOVE 1 Work", "t OK Moved"),
            (["CREATE Work"], "APPEND Work {4+}\r\ntext", "t OK [APPENDUID"),
            (["CREATE Work"], 'SETMETADATA Work (/private/comment "x")', "t OK"),
            (["CREATE Work"], "RENAME Work Done", "t OK"),
            (["CREATE Work"], "DELETE Work", "t OK"),
            (["RENAME Old New"], "DELETE Old", "t NO [NONEXISTENT]"),
            (["RENAME Old New"], "RENAME Old Other", "t NO [NONEXISTENT]"),
            (["RENAME Old New"], "COPY 1 Old", "t NO [TRYCREATE]"),
            (["RENAME Old New"], "APPEND Old {4+}\r\ntext", "t NO [TRYCREATE]"),
            (["RENAME Old New"], 'SETMETADATA Old (/private/comment "x")', "t NO [NONEXISTENT]"),
        ],
    ),
)
async def test_command_means_the_folder_that_has_the_name_since_an_ok_elsewhere(
    tmp_path: Path, autojump_clock: MockClock, changes: list[str], command: str, answer: str
) -> None:
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes["dc1"].mail.create_folder(USER, "Old")
        await nodes.converged()
        async with connected(services(nodes["dc3"].mail)) as client:
            await client.log_in(USER, "INBOX")
            await slow_lines(nodes, "dc1")
            await lines_of(nodes["dc1"], *changes)
            assert (await client.run(command))[-1].startswith(answer)


async def test_annotations_that_were_set_elsewhere_are_there(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        await slow_lines(nodes, "dc1")
        await lines_of(nodes["dc1"], 'SETMETADATA INBOX (/private/comment "x")', "CREATE Out (USE (\\Sent))")
        shown = '* METADATA "INBOX" (/private/comment "x")'
        assert shown in await lines_of(nodes["dc3"], "GETMETADATA INBOX /private/comment")
        assert '* LIST (\\HasNoChildren \\Sent) "/" "Out"' in await lines_of(nodes["dc3"], 'LIST (SPECIAL-USE) "" *')
        await lines_of(nodes["dc1"], 'SETMETADATA "" (/shared/comment "y")')
        shown = '* METADATA "" (/shared/comment "y")'
        assert shown in await lines_of(nodes["dc3"], 'GETMETADATA "" /shared/comment')


async def test_nobody_waits_for_a_node_that_is_out_of_reach(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc2", "dc3"], ["dc1"])
        await nodes["dc1"].save("only here")
        before = trio.current_time()
        assert "* 1 EXISTS" in await lines_of(nodes["dc3"], "SELECT INBOX")
        assert trio.current_time() == before
        nodes.rejoin("dc1")
        await nodes.converged()


async def test_nobody_waits_for_long_for_a_node_that_does_not_answer(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.road("dc1", "dc3").hold()  # a line that broke just now
        before = trio.current_time()
        assert not await nodes["dc3"].mail.catch_up(USER, "INBOX")
        assert trio.current_time() - before == pytest.approx(timing.READ_YOUR_WRITES_PATIENCE_S)
        nodes.network.road("dc1", "dc3").release()


async def test_the_master_asks_the_others_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes["dc1"].mail.subscribe(USER, "INBOX", subscribed=True)
        await nodes.converged()
        nodes.network.road("dc2", "dc1").hold()
        assert not await nodes["dc1"].mail.catch_up(USER, "INBOX"), "dc2 has not answered"
        nodes.network.road("dc2", "dc1").release()
        assert await nodes["dc1"].mail.catch_up(USER, "INBOX")
        nodes.network.road("dc2", "dc1").hold()
        before = trio.current_time()
        assert await nodes["dc1"].mail.catch_up(USER, "INBOX")
        assert trio.current_time() == before
        nodes.network.road("dc2", "dc1").release()


async def test_a_master_asks_again_after_it_has_given_the_mailbox_away(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        assert await nodes["dc1"].mail.catch_up(USER, "INBOX")
        for taker in ("dc2", "dc1"):
            await nodes[taker].coordinator.handover.move_to(await nodes[taker].inbox(), taker)
            await nodes[taker].save(f"at {taker}")
        mastership = nodes["dc1"].coordinator.mastership
        key = MailboxKey.of(await nodes["dc1"].inbox())
        assert mastership.may_number(key)
        assert not mastership.shows_all(key)
        await nodes.converged()
        assert await nodes["dc1"].mail.catch_up(USER, "INBOX")
        assert mastership.shows_all(key)
