"""One user of a Dovecot and of a node: deeds before, during and after syncs, and the comparison in the end.

A seed fixes what users want to do, and between which calls of the node's mail store. What Dovecot makes of times and
draws itself (GUIDs, names for folders that clash) may differ.
"""

from __future__ import annotations

import imaplib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import trio

from replicator.config import Address
from replicator.errors import UnavailableError
from replicator.imap.server import serve_imap
from replicator.runtime.environment import wall_clock_ms
from tests.dsync.dovecot import MAILDIR, SDBOX, USERS_PASSWORD, Dovecot
from tests.dsync.histories.comparison import differences
from tests.dsync.histories.deeds import Deeds
from tests.dsync.histories.ledger import Ledger
from tests.dsync.histories.side import Account, Side
from tests.dsync.sides import node_replicas
from tests.fuzz.syncs.syncers import AGAIN, DONE, ByNode, Syncer, by_dovecot
from tests.fuzz.syncs.watched_mail import watched
from tests.imap.client import LOOPBACK, services
from tests.one_node import HookedMail, one_node

KINDS = {"append": 9, "flag": 4, "expunge": 6, "copy": 1, "move": 2, "create": 1, "rename": 1, "subscribe": 1}
"""As `DEEDS`: more of what makes both sides give one UID to different mails, or leaves UIDs out.

No folder is deleted: mail that Dovecot gets meanwhile may go with it (docs/dovecot.md).
"""

PATIENCE_S = 60.0
SYNCS = ("s", "s", "c", "f")
RATES = (0.03, 0.1, 0.3)
"""Shares of the calls of a sync before which something happens."""

DEEDS_MAX = 4
"""Deeds during one sync."""

SYNCS_MAX = 6
"""Calm syncs after which all is equal: cut ones may have left things for several, and names may clash."""

FULL_AFTER = 3
"""Calm syncs of other kinds before full ones, as Dovecot's replicator has one each day."""


@dataclass(frozen=True)
class Server:
    """A Dovecot with its addresses."""

    dovecot: Dovecot
    imap: Address
    doveadm: Address


@dataclass
class Round:
    """A round. `story`: what happened, in order. `kind`, `begun_by`: of all syncs, instead of drawn ones."""

    seed: int
    servers: Mapping[str, Server]
    kind: str | None = None
    begun_by: str | None = None
    story: list[str] = field(default_factory=list)
    disturbed: int = 0

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._location = self._random.choice((SDBOX, MAILDIR))
        drawn = self._random.choice(("dovecot", "dovecot", "node"))
        self._by = self.begun_by or drawn
        self._server = self.servers[self._location]
        self._user = f"u{self.seed}{self.kind or ''}"
        self._ledger = Ledger(self._user)
        self._deeds = Deeds(self._random, self._ledger, self.story, KINDS)
        self._left = 0  # deeds that may still be done during the present sync
        self._rate = 0.0
        self._has_forgotten = False

    async def play(self) -> None:
        """Play the round. Raises what is wrong."""
        self.story.append(f"{self._location}, syncs begun by the {self._by}")
        async with self._opened():
            for _ in range(self._random.randint(0, 2)):
                await self._users_go_on()
                await self._sync()
            for _ in range(self._random.randint(1, 3)):
                await self._users_go_on()
                await self._forget()
                await self._disturbed_sync()
            await self._end()

    # ---- what happens

    async def _users_go_on(self) -> None:
        for _ in range(self._random.randint(0, 6)):
            match self._random.choice("ddnnb"):
                case "b":
                    await trio.to_thread.run_sync(self._deeds.deliver, [self._there, self._here])
                case which:
                    await self._do(which)

    async def _do(self, which: str) -> None:
        await trio.to_thread.run_sync(self._deeds.one, self._there if which == "d" else self._here)

    async def _forget(self) -> None:
        """Let Dovecot forget what was expunged, at times. Syncs by a state may miss what it has changed before."""
        if self._location == MAILDIR and self._random.random() < 0.7:
            self._has_forgotten = True
            self.story.append("Dovecot forgets what was expunged")
            await trio.to_thread.run_sync(self._server.dovecot.forget_expunges, self._user)
            await trio.to_thread.run_sync(self._there.renew)

    async def _sync(self, *, full: bool = False) -> str:
        kind = self._random.choice(SYNCS)
        kind = "f" if full else self.kind or kind
        self.story.append(f"sync {kind}")
        result = await self._syncer.sync(kind)
        there, here = await self._accounts()
        self.story += [f"  {result}", f"  Dovecot: {there}", f"  node: {here}"]
        return result

    async def _disturbed_sync(self) -> None:
        self._rate, self._left = self._random.choice(RATES), DEEDS_MAX
        await self._sync()
        self._left = 0

    async def _disturb(self, call: str) -> None:
        """Do something before a call of the mail store, at times."""
        if not self._left or self._random.random() >= self._rate:
            return
        left, self._left = self._left - 1, 0  # what is done here is not disturbed
        self.disturbed += 1
        what = self._random.choice("nnnndddcf")
        self.story.append(f"  before {call}:")
        try:
            match what:
                case "c":
                    self.story.append("  the connection ends")
                    self._syncer.cut()
                    await trio.lowlevel.checkpoint()
                case "f":
                    self.story.append("  the call fails")
                    raise UnavailableError("the disk is slow")
                case _:
                    await self._do(what)
        finally:
            self._left = left

    async def _end(self) -> None:
        """Sync until both sides are equal, and compare them with what users were told."""
        results = list[str]()
        while True:
            results.append(await self._sync(full=self._has_forgotten and len(results) >= FULL_AFTER))
            assert results[-1] in {DONE, AGAIN}, f"calm syncs fail: {results}"
            there, here = await self._accounts()
            different = [*differences(there, here, self._ledger.dovecots_copies)]
            if not different or len(results) == SYNCS_MAX:
                break
        self._ledger.check_mails(here)
        assert not different, "\n".join([f"the sides stay different: {results}", *different])
        assert await self._sync() in {DONE, AGAIN}
        assert await self._accounts() == (there, here), "another sync changes something"

    async def _accounts(self) -> tuple[Account, Account]:
        there, here = [await trio.to_thread.run_sync(side.account) for side in (self._there, self._here)]
        self._ledger.note_folders(here)
        self._ledger.note_doubled(there)
        return there, here

    # ---- what there is

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        """Open both sides."""
        with TemporaryDirectory(prefix="fuzz-") as directory:
            async with one_node(Path(directory)) as mail, _imap_door(mail) as imap:
                replica_of = node_replicas(watched(mail, self._disturb), wall_clock_ms)
                self._there = await self._side("Dovecot", self._server.imap, USERS_PASSWORD)
                self._here = await self._side("node", imap, self._user[::-1])
                self._there.namesakes = self._ledger.namesakes
                self._syncer: Syncer = ByNode(self._server.doveadm, self._user, replica_of)
                try:
                    if self._by == "node":
                        yield
                        return
                    syncer = by_dovecot(self._server.dovecot, self._user, replica_of, self._random)
                    async with syncer as self._syncer:
                        yield
                finally:
                    for side in (self._there, self._here):
                        side.client.shutdown()

    async def _side(self, name: str, address: Address, password: str) -> Side:
        def connect() -> imaplib.IMAP4:
            client = imaplib.IMAP4(address.host, address.port, PATIENCE_S)
            client.login(self._user, password)
            return client

        return await trio.to_thread.run_sync(Side, name, connect, name == "Dovecot")


@asynccontextmanager
async def _imap_door(mail: HookedMail) -> AsyncIterator[Address]:
    served = services(mail)

    async def serve(stream: trio.SocketStream) -> None:
        await serve_imap(stream, served, address=LOOPBACK)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host=LOOPBACK))
        yield Address(LOOPBACK, listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()
