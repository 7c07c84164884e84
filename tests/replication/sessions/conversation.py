"""The connection of one client, which believes what it is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import trio
import trio.testing

from replicator.imap.server import serve_imap
from tests.imap.client import LOOPBACK, Client, services
from tests.replication.cluster import USER, Node
from tests.replication.sessions.facts import Facts
from tests.replication.sessions.notified import Notified, list_of, status_of
from tests.replication.sessions.searches import printed
from tests.replication.sessions.told import Aware, Cache, Told

IDLE_S = (0.0, 0.01, 0.3, 6.0)
ENABLED = ("", "QRESYNC", "CONDSTORE", "QRESYNC")
"""Parts of RFC 7162 that each session knows from the beginning."""

SAYING_CONDSTORE = ("CONDSTORE", "QRESYNC", "MODSEQ", "CHANGEDSINCE")
"""Words of commands that enable CONDSTORE (RFC 7162 section 3.1)."""

LEARN = "(UID FLAGS MODSEQ RFC822.SIZE EMAILID)"


class LeftError(Exception):
    """The connection has ended."""


class Step(NamedTuple):
    """The next event. `who`, `a` and `b` are small numbers, whose meaning depends on `kind`."""

    kind: str
    who: int
    a: int
    b: int
    pause: int


class _Patient(Client):
    """A client that waits as long as the server does."""

    async def line(self) -> str:
        while b"\r\n" not in self.received:
            if not (data := await self.stream.receive_some(65536)):
                return ""
            self.received += data
        line, _, rest = bytes(self.received).partition(b"\r\n")
        self.received = bytearray(rest)
        return line.decode("utf-8")


class Around(NamedTuple):
    """Knowledge of a session about the world."""

    facts: Facts
    node: Callable[[int], Node]
    nursery: trio.Nursery
    epoch: Callable[[], int | None]  # a number while all nodes are linked and have been equal since, else None
    next_body: Callable[[], str]
    say: Callable[[str], None]


class Conversation:
    """One client, at one node after the other. `cache` is what it keeps while it is away."""

    def __init__(self, number: int, around: Around) -> None:
        self.number, self.around = number, around
        self._client: _Patient | None = None
        self.aware = Aware()
        self.commands = 0
        self.at = number
        self.counted: tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]] = ({}, {})
        self.told: Told | None = None
        self.cache: Cache | None = None
        self.sid = ""
        self.command = ""  # the one that is not answered yet, if any
        self.listed: set[str] = set()  # names of folders by the present LIST

    # ---- the connection

    async def connect(self, at: int) -> None:
        """Log in at a node, unless the client is connected."""
        if self._client is not None:
            return
        node = self.around.node(at)
        self.sid, self.at = node.sid, at
        ours, theirs = trio.testing.memory_stream_pair()
        self.around.nursery.start_soon(partial(serve_imap, theirs, services(node.mail), address=LOOPBACK))
        self._client, self.aware, self.told = _Patient(ours), Aware(), None
        await self._client.line()
        answer = await self.run(f"LOGIN {USER} {USER[::-1]}")
        assert " OK " in answer, answer
        if enabled := ENABLED[self.number % len(ENABLED)]:
            self.aware.condstore, self.aware.qresync = True, enabled == "QRESYNC"
            await self.run(f"ENABLE {enabled}")

    async def leave(self) -> None:
        """Break the connection, and keep what the client knows of the mailbox."""
        client, self._client = self._client, None
        if self.told is not None and self.told.is_open:
            self.cache = self.told.cache()
        self.told, self.aware = None, Aware()
        if client is not None:
            await client.stream.aclose()

    async def run(
        self, command: str, literal: str | None = None, *, tag: str | None = None, notified: Notified | None = None
    ) -> str:
        """Run a command and return the tagged answer. `notified`: what it wishes for, if it is NOTIFY.

        Raises LeftError.
        """
        await self.hear_out(0.001)
        self.aware.notified = notified or self.aware.notified
        assert self._client is not None
        self.commands += 1
        self.command, tag = command, tag or f"s{self.number}c{self.commands}"
        if self.told is not None:
            self.told.begin(command)
        text = f"{tag} {command}" + (f" {{{len(literal)}+}}\r\n{literal}" if literal is not None else "")
        await self._client.send(text + "\r\n")
        if command == "IDLE":
            await self._listen("+")
            await trio.sleep(IDLE_S[self.commands % len(IDLE_S)])
            await self._client.send("DONE\r\n")
        answer = await self._listen(tag + " ")
        self.command = ""
        self.aware.has_said_condstore |= " OK " in answer and any(word in command for word in SAYING_CONDSTORE)
        self.around.say(f"{self.number} at {self.sid}: {command}: {answer}")
        if self.told is not None:
            self.told.end(answer)
        assert " BAD " not in answer, f"{command}: {answer}"
        return answer

    async def _listen(self, prefix: str) -> str:
        assert self._client is not None
        while not (line := await self._client.line()).startswith(prefix):
            await self._hear(line)
        return line

    async def hear_out(self, quiet_s: float) -> None:
        """Take in what NOTIFY makes the server say between commands, until it has been quiet for so long."""
        if self._client is None or self.aware.notified is None:
            return
        if self.told is not None:
            self.told.begin("")
        with trio.move_on_after(quiet_s) as scope:
            while True:
                await self._hear(await self._client.line())
                scope.deadline = trio.current_time() + quiet_s
        if self.told is not None:
            self.told.end("")

    async def _hear(self, line: str) -> None:
        self.around.say(f"{self.number} at {self.sid}: {line}")
        if not line or line.startswith("* BYE"):
            assert "SERVERBUG" not in line, line
            await self.leave()
            raise LeftError
        assert "[NOTIFICATIONOVERFLOW]" not in line, line
        if (status := status_of(line)) is not None:
            self._hear_status(*status)
        elif (listed := list_of(line)) is not None:
            self._hear_list(*listed)
        elif found := re.match(r'\* METADATA "?([^" ]*)', line):
            assert self.aware.notified is not None, f"unasked: {line}"
            self.aware.notified.hear_metadata(found[1], asked=False)
        elif self.told is not None:
            self.told.hear(line)
        else:
            assert not re.match(r"\* \d+ (EXISTS|EXPUNGE|FETCH)|\* VANISHED", line), line

    # ---- what every client does

    def _hear_status(self, name: str, values: dict[str, int]) -> None:
        facts, key = self.around.facts, (self.sid, values["UIDVALIDITY"])
        uidnext, modseq = (before.get(key, 0) for before in self.counted)
        facts.rises(facts.uidnext, uidnext, key, values["UIDNEXT"])
        if "HIGHESTMODSEQ" in values:
            facts.rises(facts.modseq, modseq, key, values["HIGHESTMODSEQ"])
        asked = self.command.startswith(f"STATUS {name} ")
        assert asked or self.aware.notified is not None, f"STATUS of {name} during {self.command}"
        if self.aware.notified is not None:
            selected = self.told is not None and self.told.is_open and key[1] == self.told.uidvalidity
            assert asked or not selected or self.command in {"UNSELECT", "CLOSE"}, f"STATUS of {name}, the selected one"
            self.aware.notified.hear_status(name, values, asked=asked, condstore=self.aware.has_said_condstore)

    def _hear_list(self, name: str, attributes: set[str], old_name: str | None) -> None:
        asked = self.command.startswith("LIST")
        assert asked or self.aware.notified is not None, f"LIST of {name} during {self.command}"
        if asked and "\\NonExistent" not in attributes:
            self.listed.add(name)
        if self.aware.notified is not None:
            self.aware.notified.hear_list(name, attributes, old_name, asked=asked or self.command.startswith("NOTIFY"))

    async def _deselect(self, command: str) -> None:
        if self.told is not None:
            await self.run(command)
            self.cache, self.told = self.told.cache(), None

    async def learn(self, told: Told) -> None:
        """Fetch what the client does not know."""
        at_once = self.aware.notified is not None and self.aware.notified.is_at_once
        while unknown := [number for number, slot in enumerate(told.slots, 1) if slot.is_in_part]:
            self.aware.condstore = True
            await self.run(f"UID FETCH 1:* {LEARN}" if at_once else f"FETCH {printed(unknown)} {LEARN}")
            if unknown == [n for n, slot in enumerate(told.slots, 1) if slot.is_in_part]:
                await self.run("NOOP")  # they have been expunged, which FETCH may not tell
