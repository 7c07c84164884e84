"""A cluster of three nodes, IMAP sessions at all of them, and the steps that Hypothesis draws."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import trio
from hypothesis import strategies as st
from trio.testing import MockClock

from replicator.config import UidConflict
from replicator.errors import MailError
from replicator.imap import selection
from replicator.mail import view
from replicator.mail.mailstore import NewMessage
from tests.replication.cluster import USER, Cluster, Node, cluster, until
from tests.replication.sessions.conversation import Around, LeftError, Step
from tests.replication.sessions.facts import Facts
from tests.replication.sessions.searches import body_of
from tests.replication.sessions.session import FOLDERS, Session, folder
from tests.simulation.runtime.scheduler import deterministic

PAUSES_S = (None, 0.0, 0.0, 0.002, 0.02, 6.0)  # after a step; None: until the session has done it
LIMIT_S = 3600.0

KINDS = (
    *("store", "store", "store", "compare", "compare", "expunge", "expunge", "append", "copy", "move"),
    *("fetch", "fetch", "search", "search", "sort", "context", "context", "noop", "idle", "status"),
    *("select", "resume", "resume", "drop", "unselect", "enable", "rename", "create", "subscribe", "annotate"),
    *("notify",) * 6,
    *("deliver", "deliver", "deliver", "cut", "cut", "mend", "settle"),
)

NUMBER = st.integers(0, 7)
STEPS = st.lists(
    st.builds(Step, st.sampled_from(KINDS), st.integers(0, 5), NUMBER, NUMBER, st.integers(0, len(PAUSES_S) - 1)),
    min_size=5,
    max_size=40,
)


@dataclass
class World:
    """The cluster and its clients."""

    cluster: Cluster
    nursery: trio.Nursery
    facts: Facts = field(default_factory=Facts)
    story: list[str] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    queues: list[trio.MemorySendChannel[Step]] = field(default_factory=list)
    scopes: dict[int, trio.CancelScope] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)  # steps of each session that are not done
    is_whole: bool = True
    epoch: int = 0
    bodies: int = 0

    def node(self, number: int) -> Node:
        """Return a node."""
        return self.cluster[self.cluster.sids[number % len(self.cluster.sids)]]

    def add_session(self, number: int) -> None:
        """Begin a session, which waits for steps."""
        around = Around(self.facts, self.node, self.nursery, self.whole_epoch, self.next_body, self.story.append)
        send, receive = trio.open_memory_channel[Step](1000)
        session = Session(number, around)
        self.sessions.append(session)
        self.queues.append(send)
        self.waiting.append(0)
        self.nursery.start_soon(self._carry_out, session, number, receive)

    def whole_epoch(self) -> int | None:
        """Return a number that stays while all nodes are linked and their branches joined, else None."""
        return self.epoch if self.is_whole else None

    def next_body(self) -> str:
        """Return another message."""
        self.bodies += 1
        return body_of(self.bodies)

    async def _carry_out(self, session: Session, number: int, steps: trio.MemoryReceiveChannel[Step]) -> None:
        async for step in steps:
            with trio.CancelScope() as self.scopes[number]:
                try:
                    await session.do(step)
                except (LeftError, trio.BrokenResourceError):
                    await session.leave()
            if self.scopes[number].cancelled_caught:
                await session.leave()
            self.waiting[number] -= 1

    async def take(self, step: Step) -> None:
        """Take a step."""
        self.story.append(f"-- {step}")
        number = step.who % len(self.sessions)
        if step.kind in {"deliver", "cut", "mend", "settle", "drop"}:
            await getattr(self, f"_{step.kind}")(step)
        else:
            self.waiting[number] += 1
            await self.queues[number].send(step)
        pause_s = PAUSES_S[step.pause]
        if pause_s is not None:
            await trio.sleep(pause_s)
        else:
            await self.at_rest(number)

    async def at_rest(self, *numbers: int) -> None:
        """Wait until these sessions, or all, have done their steps."""
        asked = numbers or range(len(self.waiting))
        await until(lambda: not any(self.waiting[number] for number in asked), within_s=LIMIT_S)

    async def _deliver(self, step: Step) -> None:
        node, name = self.node(step.a), folder(step.b)
        try:
            await node.mail.save(await node.mail.folder(USER, name), NewMessage(self.next_body().encode()))
        except MailError as error:
            self.story.append(f"a delivery at {node.sid} fails: {error}")

    async def _cut(self, step: Step) -> None:
        self.is_whole = False
        sids = self.cluster.sids
        if step.b % 2:
            self.cluster.network.cut((sids[step.a % 3], sids[(step.a + 1) % 3]))
        else:
            self.cluster.isolate(sids[step.a % 3])

    async def _mend(self, _step: Step) -> None:
        for sid in self.cluster.sids:
            self.cluster.rejoin(sid)

    async def _settle(self, step: Step) -> None:
        await self._mend(step)
        await self.cluster.linked()
        await self.cluster.converged()
        if not self.is_whole:
            self.epoch, self.is_whole = self.epoch + 1, True

    async def _drop(self, step: Step) -> None:
        number = step.who % len(self.sessions)
        if self.waiting[number] and number in self.scopes:
            self.scopes[number].cancel()
        else:
            await self.sessions[number].leave()

    async def finish(self) -> None:
        """End all faults, and check what each client knows, and keeps."""
        await self.at_rest()
        await self._settle(Step("settle", 0, 0, 0, 0))
        for _ in range(2):  # the first one may have changes to tell that its own learning causes
            for session in self.sessions:
                try:
                    if session.sid:
                        await session.check_equal(self.cluster[session.sid])
                except LeftError:
                    self.story.append("a session ends")
        for number, session in enumerate(self.sessions):
            for at in (number, number + 1):
                try:
                    if session.cache is not None or session.told is not None:
                        await session.connect(at)
                        await session.do(Step("resume", number, at, 2 * at + 1, 0))
                except LeftError:
                    self.story.append("a session ends")
            await session.leave()


@asynccontextmanager
async def world(directory: Path, clock: MockClock, sessions: int, uid: UidConflict) -> AsyncIterator[World]:
    """Run a cluster with some mail, and sessions that have yet to log in."""
    with deterministic("sessions"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, "STEP_WORK", 3)
        patch.setattr(selection, "ANNOUNCED_AT_ONCE", 2)
        async with cluster(directory, clock, 3, uid=uid) as nodes, trio.open_nursery() as nursery:
            made = World(nodes, nursery)
            for name in FOLDERS[1:3]:
                await made.node(0).mail.create_folder(USER, name)
            for name in (*FOLDERS[:1] * 6, *FOLDERS[1:3]):
                await made.node(0).save(made.next_body(), name)
            await nodes.converged()
            for number in range(sessions):
                made.add_session(number)
            yield made
            nursery.cancel_scope.cancel()


async def play(directory: Path, sessions: int, uid: UidConflict, steps: Sequence[Step], *, clock: MockClock) -> None:
    """Take all steps, and check everything in the end."""
    async with world(directory, clock, sessions, uid) as made:
        try:
            for step in steps:
                await made.take(step)
            await made.finish()
        except BaseException as error:
            error.add_note("\n".join(made.story[-80:]))
            raise


def run(directory: Path, sessions: int, uid: UidConflict, steps: Sequence[Step]) -> None:
    """Play in virtual time."""
    clock = MockClock(autojump_threshold=0)
    trio.run(partial(play, directory, sessions, uid, steps, clock=clock), clock=clock)
