"""Decides when a node with a new database begins to serve (design section 7).

The node may have lost the disk that held the cluster's mail, or have started while that disk is not mounted. Then it
shows nothing, and would number changes that other nodes have already numbered under another UIDVALIDITY. So it serves
no client until it is linked to a node that has begun, or until all configured nodes are linked and all are new: then
this is the start of a new cluster. In the first case the node has begun once it has all that the other one had
(`mailbox_readiness`): before that it is no source for other new nodes, and after a restart it still counts as new.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import trio

from protocol.commands import Hello
from replicator.errors import MailError, NotReadyError
from replicator.replication import timing
from replicator.replication.links.handshake import REBUILDING
from replicator.replication.links.link import PeerLink
from replicator.replication.links.rival_runs import PeerState
from replicator.runtime.signals import Signal
from replicator.store.db import schema
from replicator.store.store import Store

log = logging.getLogger(__name__)

NEW = "NEW"
"""The HELLO capability of a node that has not begun."""


class Admission:
    """The admission of this node to its cluster. Belongs to the event loop.

    `peers` returns the configured peers, `hello` this node's HELLO as of now. `ask_again` sends LOG to all peers, which
    tells new peers this node's context once it has begun.

    Clients that come within `patience_s` seconds of the start wait until these have passed; later ones are refused at
    once.
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
        self._links_changed = Signal()
        self.met = trio.Event()  # the node serves, as far as it can
        self.begun = trio.Event()  # the node has begun, and that is on disk
        if not is_new:
            self.met.set()
            self.begun.set()

    @property
    def has_peers(self) -> bool:
        """True if peers are configured."""
        return bool(self._peers())

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The capabilities that HELLO announces: NEW until the node has begun."""
        return () if self.begun.is_set() else (NEW,)

    async def wait(self) -> None:
        """Return once the node has met its cluster. Raises NotReadyError if that takes too long."""
        if self.met.is_set():
            return
        with trio.move_on_at(self._patient_until):
            await self.met.wait()
        if not self.met.is_set():
            raise NotReadyError("this node is new and waits for a node that has the mail; try again later")

    def problem(self) -> str | None:
        """Return, for the operator, what the node waits for and what to do; None if it has met its cluster."""
        if self.met.is_set():
            return None
        waits_for = ", ".join(f"{sid} ({_standing(state)})" for sid, state in sorted(self._peers().items()))
        return (
            "this node's database is new, and the node serves no clients until it has heard from its cluster:"
            f" {waits_for}; start these nodes, repair the network to them, or correct their [[peer]] in this node's"
            " configuration; if this node's data directory is on a disk that is not mounted, stop the node and mount"
            " the disk; if there is no cluster yet, start the node with --new-cluster"
        )

    def linked(self, link: PeerLink) -> None:
        """Handle a new link: its peer may have begun, or may have received HELLO before this node had begun."""
        if self.begun.is_set():
            self._greet_anew(link)
        self._links_changed.set()

    def peers_changed(self) -> None:
        """Look again whether this node may begin, after peers were added or removed."""
        self._links_changed.set()

    def renewed(self, link: PeerLink, hello: Hello) -> None:
        """Handle another HELLO of a peer, which has begun. Raises ProtocolError."""
        link.renew(hello)
        self._links_changed.set()

    def is_source(self, link: PeerLink) -> bool:
        """Return True if the peer has the cluster's data, as far as any single node does."""
        return not {NEW, REBUILDING} & {*link.hello.capabilities}

    async def run(self) -> None:
        """Return once the node has met its cluster. If that takes too long, log what the node waits for."""
        if self.met.is_set():
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell)
            while not self._may_begin():
                await self._links_changed.wait()
                self._links_changed.clear()
            nursery.cancel_scope.cancel()
        if all(map(_is_new, self._peers().values())):
            await self.begin()
        self.met.set()

    def _may_begin(self) -> bool:
        peers = self._peers().values()
        return any(map(self._has_begun, peers)) or all(map(_is_new, peers))

    async def begin(self) -> None:
        """Record for good that the node has its cluster's data, and tell the peers."""
        while not self.begun.is_set():
            try:
                await self._store.write(lambda tx: schema.begin(tx.connection))
            except MailError as error:
                log.warning("cannot record that this node has its cluster's data: %s", error)
                await trio.sleep(timing.ADMISSION_RETRY_S)
            else:
                log.info("this node started with a new database; it has its cluster's mail now and serves clients")
                self.begun.set()
                for state in self._peers().values():
                    if state.link is not None:
                        self._greet_anew(state.link)
                self._ask_again()

    def _greet_anew(self, link: PeerLink) -> None:
        """Send HELLO again to a new peer, which waits for a node that has begun."""
        if NEW in link.hello.capabilities:
            link.post(self._hello())

    def _has_begun(self, state: PeerState) -> bool:
        return state.link is not None and self.is_source(state.link)

    async def _tell(self) -> None:
        await trio.sleep_until(self._patient_until)
        while True:
            log.warning("%s", self.problem())
            await trio.sleep(timing.ADMISSION_TOLD_EVERY_S)


def _is_new(state: PeerState) -> bool:
    return state.link is not None and NEW in state.link.hello.capabilities


def _standing(state: PeerState) -> str:
    if state.link is None:
        return "not reached"
    if REBUILDING in state.link.hello.capabilities:
        return "being rebuilt"
    return "new, too" if _is_new(state) else "linked"
