"""When a node whose database is new begins to serve (design section 7).

It may have lost a disk that the cluster's mail was on, or have started on a disk that is not mounted. What it shows is
nothing then, and what it would number others have numbered already, under another UIDVALIDITY. So it serves nobody
until it is linked to a node that has begun, or until all configured nodes are linked and all are new: then there is no
cluster yet, and this is its beginning. In the first case it has begun once it has all that the other one had
(`readiness`): before, it is no source to other new nodes, and after a restart it is as new as it was.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping

import trio

from protocol.commands import Hello
from replicator.errors import MailError, NotReadyError
from replicator.replication.links.connections import REBUILDING, PeerState
from replicator.replication.links.link import PeerLink
from replicator.store.db import schema
from replicator.store.store import Store

log = logging.getLogger(__name__)

NEW = "NEW"
"""The capability of a node that has not begun."""

TOLD_EVERY_S = 60.0
RETRY_S = 1.0  # after a write that failed


class Admission:
    """Belongs to the event loop. `peers` are the configured ones; `hello` is what this node says of itself now.

    `ask_again` sends LOG to all peers: that is how new ones hear what this node has when it has begun.

    Clients that come within `patience_s` of the start are kept waiting for as long; later ones are refused at once.
    """

    def __init__(
        self,
        store: Store,
        peers: Callable[[], Mapping[str, PeerState]],
        hello: Callable[[], Hello],
        ask_again: Callable[[], None],
        *,
        is_new: bool,
        patience_s: float,
    ) -> None:
        self._patient_until = trio.current_time() + patience_s
        self._store = store
        self._peers = peers
        self._hello = hello
        self._ask_again = ask_again
        self._links_changed = trio.Event()
        self.met = trio.Event()  # it serves, as far as it can
        self.begun = trio.Event()  # it is written down, too
        if not is_new:
            self.met.set()
            self.begun.set()

    @property
    def has_peers(self) -> bool:
        """Whether there is anybody to hear from."""
        return bool(self._peers())

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What HELLO says of it."""
        return () if self.begun.is_set() else (NEW,)

    async def wait(self) -> None:
        """Return once the node has met its cluster. Raises NotReadyError if that takes too long."""
        if self.met.is_set():
            return
        with trio.move_on_at(self._patient_until):
            await self.met.wait()
        if not self.met.is_set():
            raise NotReadyError("this node is new, and waits for another one that has the mail; try again later")

    def problem(self) -> str | None:
        """What is waited for, and what to do; None: the node has met its cluster."""
        if self.met.is_set():
            return None
        waits_for = ", ".join(f"{sid} ({_standing(state)})" for sid, state in sorted(self._peers().items()))
        return (
            "this node's database is new, and it serves nobody before it has heard from its cluster:"
            f" {waits_for}; start these nodes, mend the lines to them, or correct their [[peer]] in this node's file;"
            " if this node's data are on a disk that is not mounted, stop it and mount that; if there is no cluster"
            " yet, start the node with --new-cluster"
        )

    def linked(self, link: PeerLink) -> None:
        """A link stands: its peer may have begun, or may have greeted this node before that had."""
        if self.begun.is_set():
            self._greet_anew(link)
        self._links_changed.set()

    def renewed(self, link: PeerLink, hello: Hello) -> None:
        """A peer says HELLO once more: it has begun. Raises ProtocolError."""
        link.renew(hello)
        self._links_changed.set()

    def is_source(self, link: PeerLink) -> bool:
        """Whether the peer has what the cluster has, as far as any one node does."""
        return not {NEW, REBUILDING} & {*link.hello.capabilities}

    async def run(self) -> None:
        """Return once the node has met its cluster. What it waits for is told if that takes too long."""
        if self.met.is_set():
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell)
            while not self._may_begin():
                await self._links_changed.wait()
                self._links_changed = trio.Event()
            nursery.cancel_scope.cancel()
        if all(map(_is_new, self._peers().values())):
            await self.begin()
        self.met.set()

    def _may_begin(self) -> bool:
        peers = self._peers().values()
        return any(map(self._has_begun, peers)) or all(map(_is_new, peers))

    async def begin(self) -> None:
        """The node has what its cluster has, from now on and for good."""
        while not self.begun.is_set():
            try:
                await self._store.write(lambda tx: schema.begin(tx.connection))
            except (MailError, sqlite3.Error) as error:
                log.warning("that this node begins to serve cannot be written down: %s", error)
                await trio.sleep(RETRY_S)
            else:
                log.info("this node's database, which was new, has what its cluster has")
                self.begun.set()
                for state in self._peers().values():
                    if state.link is not None:
                        self._greet_anew(state.link)
                self._ask_again()

    def _greet_anew(self, link: PeerLink) -> None:
        """A peer that is new waits to hear that another one is not."""
        if NEW in link.hello.capabilities:
            link.post(self._hello())

    def _has_begun(self, state: PeerState) -> bool:
        return state.link is not None and self.is_source(state.link)

    async def _tell(self) -> None:
        await trio.sleep_until(self._patient_until)
        while True:
            log.warning("%s", self.problem())
            await trio.sleep(TOLD_EVERY_S)


def _is_new(state: PeerState) -> bool:
    return state.link is not None and NEW in state.link.hello.capabilities


def _standing(state: PeerState) -> str:
    if state.link is None:
        return "not reached"
    if REBUILDING in state.link.hello.capabilities:
        return "being rebuilt"
    return "new, too" if _is_new(state) else "linked"
