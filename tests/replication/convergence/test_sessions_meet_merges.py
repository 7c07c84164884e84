"""IMAP sessions during a merge of their mailbox hear of removed and new messages in legal responses."""

import random
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.config import UidConflict
from replicator.mail.mailstore import INBOX, BodyReader
from replicator.mail.view import Message
from tests.effort import examples
from tests.imap.client import Client, connected, services
from tests.replication.cluster import USER, Cluster, Node, cluster
from tests.replication.follower import Follower
from tests.replication.meeting import behind_a_merge, bodies, fork, meeting


@asynccontextmanager
async def session(node: Node) -> AsyncIterator[Client]:
    """Yield a client that has selected INBOX."""
    async with connected(services(node.mail)) as client:
        await client.log_in(USER, INBOX)
        yield client


def without_recent(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.endswith(" RECENT")]


async def heal(nodes: Cluster) -> None:
    nodes.network.mend(("dc1", "dc2"))
    await nodes.linked()
    await nodes.converged()


async def test_idle_reports_a_merge_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await fork(nodes)
        async with session(nodes["dc1"]) as one, session(nodes["dc2"]) as other:
            for client in (one, other):
                await client.send("i IDLE\r\n")
                assert await client.line() == "+ idling"
            await heal(nodes)
            for client in (one, other):
                assert [await client.line(), await client.line()] == ["* 2 EXPUNGE", "* 3 EXISTS"]
                await client.send("DONE\r\n")
                assert without_recent(await client.until("i")) == ["i OK IDLE ended"]
                assert (await client.run("FETCH 1:* (UID)"))[:-1] == [
                    "* 1 FETCH (UID 1)", "* 2 FETCH (UID 3)", "* 3 FETCH (UID 4)"
                ]  # fmt: skip


async def test_noop_reports_a_merge(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await fork(nodes)
        async with session(nodes["dc1"]) as client:
            await heal(nodes)
            assert without_recent(await client.run("NOOP")) == ["* 2 EXPUNGE", "* 3 EXISTS", "t OK Nothing done"]
            assert await client.run("UID FETCH 2 (FLAGS)") == ["t OK Fetched"]


async def test_merge_during_a_fetch(tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await fork(nodes)
        mail = nodes["dc1"].mail
        read = mail.read_bodies

        async def heal_and_read(messages: Iterable[Message], max_bytes: int) -> Mapping[bytes, BodyReader]:
            monkeypatch.undo()
            found = await read(messages, max_bytes)
            await heal(nodes)
            return found

        async with session(nodes["dc1"]) as client:
            monkeypatch.setattr(mail, "read_bodies", heal_and_read)
            assert without_recent(await client.run("FETCH 1:2 (UID BODY.PEEK[])")) == [
                '* 1 FETCH (UID 1 BODY[] "both")',
                "* 4 EXISTS",
                "t OK [EXPUNGEISSUED] Fetched; 1 of the messages have been expunged, and NOOP tells which",
            ]
            assert await client.run("FETCH 2 (FLAGS)") == [
                "t OK [EXPUNGEISSUED] Fetched; 1 of the messages have been expunged, and NOOP tells which"
            ]
            assert (await client.run("FETCH 3:4 (UID)"))[:-1] == ["* 3 FETCH (UID 3)", "* 4 FETCH (UID 4)"]
            assert await client.run("NOOP") == ["* 2 EXPUNGE", "t OK Nothing done"]


@pytest.mark.parametrize(
    ("command", "told", "kept"),
    [
        ("STORE 1:2 +FLAGS (\\Flagged)", ["* 1 FETCH (FLAGS (\\Flagged \\Recent))", "* 4 EXISTS", "t OK Stored"], True),
        ("STORE 2 +FLAGS.SILENT (\\Flagged)", ["* 4 EXISTS", "t OK Stored"], True),
        ("UID STORE 2 +FLAGS (\\Flagged)", ["* 2 EXPUNGE", "* 3 EXISTS", "t OK Stored"], True),
        ("UID COPY 2 Archive", ["* 2 EXPUNGE", "* 3 EXISTS", "t OK [COPYUID _ 2 1] Copied"], True),
        (
            "MOVE 2 Archive",
            ["* OK [COPYUID _ 2 1] Moved there", "* 2 EXPUNGE", "* 2 EXISTS", "t OK Moved"],
            False,
        ),
    ],
)
async def test_command_during_a_merge(
    tmp_path: Path,
    autojump_clock: MockClock,
    command: str,
    told: list[str],
    kept: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].mail.create_folder(USER, "Archive")
        await fork(nodes)
        answers: list[str] = []
        async with session(nodes["dc1"]) as client:
            async with behind_a_merge(nodes):

                async def run() -> None:
                    answers.extend(await client.run(command))

                await meeting(nodes, run)
            assert [re.sub("COPYUID [0-9]+", "COPYUID _", line) for line in without_recent(answers)] == told
            shown = await nodes["dc2"].bodies()
            assert sorted(shown.values()) == (["both", "mine", "rival"] if kept else ["both", "rival"])
            if "Flagged" in command:
                flagged = {shown[message.uid] for message in await nodes["dc2"].messages() if message.flags}
                assert flagged == ({"both", "mine"} if "1:2" in command else {"mine"})
            else:
                assert await bodies(nodes, "Archive") == ["mine"]


async def test_expunge_during_a_merge_removes_only_what_the_client_saw(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await fork(nodes)
        await nodes["dc2"].flag(2, added=["\\Deleted"])
        async with session(nodes["dc1"]) as client:
            assert (await client.run("STORE 2 +FLAGS.SILENT (\\Deleted)"))[-1] == "t OK Stored"
            async with behind_a_merge(nodes):
                await meeting(nodes, partial(client.run, "EXPUNGE"))
            assert await bodies(nodes) == [
                "both",
                "rival",
            ]  # the client had not seen dc2's flag
            assert (await client.run("EXPUNGE"))[-1] == "t OK Expunged"
            assert await bodies(nodes) == ["both"]


@pytest.mark.parametrize(
    ("command", "copied"),
    [("EXPUNGE", []), ("STORE 2 +FLAGS (\\Flagged)", []), ("COPY 2 Archive", ["mine"]), ("MOVE 2 Archive", ["mine"])],
)
async def test_rise_of_uidvalidity_ends_the_session_and_its_changes(
    tmp_path: Path, autojump_clock: MockClock, command: str, copied: list[str]
) -> None:
    """A copy finds its source by GUID; a move whose copy is made is finished by placement."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1, uid=UidConflict.UIDVALIDITY) as nodes:
        await nodes["dc1"].mail.create_folder(USER, "Archive")
        await fork(nodes)
        await nodes["dc1"].flag(2, added=["\\Deleted"])
        answers: list[str] = []
        async with session(nodes["dc1"]) as client:
            async with behind_a_merge(nodes):

                async def run() -> None:
                    answers.extend(await client.run(command))

                await meeting(nodes, run)
            assert [line[:5] for line in answers if not line.startswith("* OK [COPYUID")] == ["* BYE", ""]
        assert await bodies(nodes) == (["both", "rival"] if "MOVE" in command else ["both", "mine", "rival"])
        assert await bodies(nodes, "Archive") == copied
        assert not [message for message in await nodes["dc2"].messages() if "\\Flagged" in message.flags]


# ---- random commands at random times -----------------------------------------------------------------------------

COMMANDS = [
    "NOOP",
    "FETCH 1:* (UID FLAGS EMAILID)",
    "UID FETCH 1:* (FLAGS EMAILID)",
    "FETCH 1:* (UID BODY[])",
    "STORE 1:* +FLAGS (\\Flagged)",
    "STORE 2 +FLAGS.SILENT (\\Deleted)",
    "UID STORE 2:5 +FLAGS (\\Deleted)",
    "STORE 1 -FLAGS (\\Flagged)",
    "SEARCH FLAGGED",
    "UID SEARCH UNFLAGGED",
    "EXPUNGE",
    "COPY 1 INBOX",
    "UID MOVE 3 INBOX",
    "APPEND INBOX {4+}\r\nmail",
    "IDLE",
]


async def act(follower: Follower, rng: random.Random, turns: int) -> None:
    for _ in range(turns):
        await trio.sleep(rng.choice([0, 0.01, 0.1, 1]))
        command = rng.choice(COMMANDS)
        if command != "IDLE":
            await follower.run(command)
            continue
        await follower.client.send("t IDLE\r\n")
        await trio.sleep(rng.choice([0, 0.1, 3]))
        await follower.client.send("DONE\r\n")
        follower.hear((await follower.client.until("t"))[:-1], command)


@pytest.mark.parametrize("seed", range(examples(1, 8)))
async def test_clients_that_follow_untagged_responses_have_the_right_state(
    tmp_path: Path, autojump_clock: MockClock, seed: int
) -> None:
    rng = random.Random(seed)
    async with cluster(tmp_path, autojump_clock, 3, copies=1) as nodes, AsyncExitStack() as stack:
        for number in range(3):
            await nodes["dc1"].save(f"mail {number}")
        await nodes.converged()
        followers = []
        for node in nodes.all():
            ids_by_uid: dict[int, str] = {}
            for _ in range(2):
                client = await stack.enter_async_context(connected(services(node.mail)))
                await client.log_in(USER)
                follower = Follower(client, ids_by_uid)
                await follower.run(f"SELECT {INBOX}")
                await follower.look()
                followers.append(follower)
        for _ in range(2):
            nodes.isolate(rng.choice(nodes.sids))
            async with trio.open_nursery() as nursery:
                for follower in followers:
                    nursery.start_soon(act, follower, random.Random(rng.random()), 8)
                await trio.sleep(rng.choice([1, 8]))
                for sid in nodes.sids:
                    nodes.rejoin(sid)
        await nodes.linked()
        await nodes.converged()
        await trio.sleep(1)
        await nodes.converged()
        messages = (await nodes["dc1"].view()).messages
        assert len(messages) > 1
        for follower in followers:
            await follower.run("NOOP")
            await follower.look()
            assert follower.uids == list(messages)
            assert follower.flags == [message.flags for message in messages.values()]
