"""IMAP sessions through the real door: clients that look at a mailbox while everything else happens.

Each client follows what the server tells it, and checks that IMAP allows it (`tests.replication.follower`).
"""

from __future__ import annotations

import random
import re
from functools import partial

import trio

from replicator.errors import MailError
from tests.imap.client import Client, connected, services
from tests.replication.cluster import Node
from tests.replication.follower import Follower
from tests.simulation.clients.client import FLAGS
from tests.simulation.machine import Machine, NodeGoneError
from tests.simulation.world import World

COMMANDS = (
    "NOOP",
    "CHECK",
    "FETCH 1:* (UID FLAGS EMAILID)",
    "SEARCH ALL",
    "UID SEARCH UNSEEN",
    "STATUS INBOX (MESSAGES)",
)
MAX_COMMANDS = 20
IDLE_S = 3.0


class Reader:
    """A reader of one user's INBOX, at one node after the other."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._dice = random.Random(f"reader {world.plan.seed} {number}")
        self._name = f"reader {number}"
        self._user = self._dice.choice(world.plan.users)

    async def run(self) -> None:
        """Run sessions until cancelled."""
        while True:
            await trio.sleep(self._dice.uniform(0.01, self._world.plan.pause_s))
            machine = self._dice.choice(list(self._world.machines.values()))
            try:
                await machine.call(partial(self._session, machine))
            except (NodeGoneError, MailError) as error:
                self._say(f"{error}")

    async def check_view(self, machine: Machine) -> None:
        """Check that a client of a healthy cluster is told exactly what the node shows."""
        await machine.call(partial(self._look, machine))

    async def _look(self, machine: Machine, node: Node) -> None:
        async with connected(services(node.mail)) as client:
            await client.log_in(self._user)
            follower = await self._select(machine, node, client)
            assert follower is not None
            await follower.look()
            view = await node.view(user=self._user)
            assert follower.uids == list(view.messages)
            assert follower.flags == [message.flags for message in view.messages.values()]

    async def _session(self, machine: Machine, node: Node) -> None:
        try:
            async with connected(services(node.mail)) as client:
                await self._converse(machine, node, client)
        except* trio.TooSlowError:
            self._say(f"at {node.sid}: the node does not greet: it stands still")

    async def _converse(self, machine: Machine, node: Node, client: Client) -> None:
        try:
            answer = (await client.run(f"LOGIN {self._user} {self._user[::-1]}"))[-1]
            if "[UNAVAILABLE]" in answer:  # a node that has lost its disk has yet to meet the others
                self._say(f"at {node.sid}: {answer}")
                return
            assert "OK" in answer, answer
            if (follower := await self._select(machine, node, client)) is not None:
                await self._follow(follower, client)
        except trio.TooSlowError:
            self._say(f"at {node.sid}: the node stands still, or waits")
        except trio.BrokenResourceError:
            self._say(f"at {node.sid}: the server has closed the connection")

    async def _select(self, machine: Machine, node: Node, client: Client) -> Follower | None:
        """Select INBOX. Return None if it cannot be opened now."""
        *told, answer = await client.run("SELECT INBOX")
        if "OK" not in answer:
            self._say(f"at {node.sid}: {answer}")
            return None
        uidvalidity = next(int(found[1]) for line in told if (found := re.search(r"\[UIDVALIDITY (\d+)\]", line)))
        mailbox_id = (await node.inbox(self._user)).mailbox_id
        ids_by_uid = self._world.ids_by_uid.setdefault((machine.sid, mailbox_id, uidvalidity), {})
        follower = Follower(client, ids_by_uid)
        follower.hear(told, "SELECT")
        return follower

    async def _follow(self, follower: Follower, client: Client) -> None:
        for _ in range(self._dice.randint(1, MAX_COMMANDS)):
            await trio.sleep(self._dice.uniform(0, 0.5))
            answer = await self._idle(follower, client) if self._dice.random() < 0.2 else await self._command(follower)
            if not answer:
                self._say("is told that the mailbox is another one by now")
                return

    async def _command(self, follower: Follower) -> str:
        choice = self._dice.random()
        if choice < 0.2 and follower.uids:
            number, flag = self._dice.randint(1, len(follower.uids)), self._dice.choice(FLAGS)
            return await follower.run(f"STORE {number} +FLAGS ({flag})")
        if choice < 0.25:
            return await follower.run("EXPUNGE")
        return await follower.run(self._dice.choice(COMMANDS))

    async def _idle(self, follower: Follower, client: Client) -> str:
        await client.send("i IDLE\r\n")
        first = await client.line()
        if first != "+ idling":
            return first and (await client.until("i"))[-1]
        await trio.sleep(self._dice.uniform(0, IDLE_S))
        await client.send("DONE\r\n")
        *told, answer = await client.until("i")
        follower.hear(told, "IDLE")
        return answer

    def _say(self, what: str) -> None:
        self._world.story.say(f"{self._name} of {self._user} {what}")
