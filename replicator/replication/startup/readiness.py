"""Which mailboxes a node may show that has just started (design section 7).

It may have been away for long, or have lost its disk: what it shows is older than what its clients have seen elsewhere,
or a part of that, under the right UIDVALIDITY, and they would drop mail from their caches. So it first hears what its
peers have, by their LOG. Once its own log has all that, it shows everything; before, each mailbox and tree that
somebody asks for is compared with the peers at once, and taken over from them where this node is behind. So is
afterwards what the log alone does not bring: what a state transfer has postponed, and what has entries that wait. A new
node has not begun while anything is postponed.

What is told here holds for one start. A node that is cut off goes on with what it has, and so does one that reaches
nobody; but not one whose database is new.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from protocol.values import Context, Dot, covers
from replicator.errors import MailError, NotReadyError
from replicator.replication.convergence import sync_client
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.convergence.sync_client import DamagedError
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.startup.admission import Admission
from replicator.store.db.queries import MailboxKey
from replicator.store.log import pending_resync
from replicator.store.log.pending_resync import EVERYTHING
from replicator.store.store import Store

log = logging.getLogger(__name__)

PATIENCE_S = 5.0  # of a client whose mailbox is compared; that goes on when it has left
LOOK_EVERY_S = 0.05
LEFT_EVERY_S = 1.0  # once the log is here: between two looks at what it has not brought
COMPARE_EVERY_S = 60.0  # all that is shown, while the log has not brought what peers said they have
COMPARE_S = 60.0  # what takes longer is tried again
BUSY_MAX = 100  # mailboxes that may differ for a moment, because somebody writes
AT_ONCE = 8  # mailboxes that are compared
WANTED_MAX = 1000  # that wait for their turn

_WHOLE = {Outcome.SAME, Outcome.ADOPTED, Outcome.MERGED, Outcome.AHEAD}


@dataclass(slots=True)
class _Told:
    """What a peer has said it has, and when that run of it was last within reach."""

    origin: str
    context: Context
    present_at: float


class Readiness:
    """Belongs to the event loop. `links` are those that are up; `met_others`: there was time to meet all peers."""

    def __init__(
        self,
        store: Store,
        admission: Admission,
        mastership: Mastership,
        reconciliation: Reconciliation,
        links: Callable[[], Sequence[PeerLink]],
        *,
        met_others: trio.Event,
        timeout_s: float,
    ) -> None:
        self._store = store
        self._admission = admission
        self._mastership = mastership
        self._reconciliation = reconciliation
        self._links = links
        self._met_others = met_others
        self._timeout_s = timeout_s
        self._told: dict[str, _Told] = {}  # by peers
        self._all = trio.Event()  # everything may be shown
        self._left: frozenset[bytes] | None = None  # what the log has not brought; None: the log itself is not here yet
        self._may_compare = trio.Event()
        self._ready: set[bytes] = set()
        self._comparing: dict[bytes, trio.Event] = {}
        self._look_at = 0.0  # whether peers show more than this node
        self._wanted_in, self._wanted_out = trio.open_memory_channel[MailboxKey](WANTED_MAX)

    # ---- for who shows mailboxes

    async def wait(self, key: MailboxKey) -> None:
        """Return once the mailbox or tree may be shown. Raises NotReadyError if that takes too long."""
        if self._may_show(key):
            return
        await self._admission.wait()
        with trio.move_on_after(PATIENCE_S):
            await self._may_compare.wait()
            while not self._may_show(key):
                await self._compared(key)
            return
        raise NotReadyError("this node has yet to catch up with the others; its mail is there; try again later")

    async def wait_to_number(self, key: MailboxKey) -> None:
        """The same for who numbers: a database that is not new knows at least what UIDs it has shown itself."""
        if not self._admission.begun.is_set():
            await self.wait(key)

    def problem(self) -> str | None:
        """Why not everything is shown; None: it is."""
        if self._all.is_set() or not self._admission.met.is_set() or not self._admission.has_peers:
            return None
        if self._left is not None and self._admission.begun.is_set():
            return None  # a few mailboxes that are compared first keep no client from all others
        if self._left is not None:
            return (
                "this node's database is new, and a state transfer has left mailboxes that are not as the others show"
                " them: they are compared every minute; see `replicator status`, and `replicator resync --all`"
            )
        if not self._may_compare.is_set():
            return "this node has just started, and waits to hear what the others have"
        context = self._store.context
        lacking = sum(max(0, seq - context.get(origin, 0)) for origin, seq in self._target().items())
        return (
            f"this node has yet to catch up with what {', '.join(sorted(self._told))} had when it started: {lacking}"
            " entries; mailboxes are shown as they have been compared"
        )

    # ---- events

    def heard(self, link: PeerLink, context: Sequence[Dot]) -> None:
        """A peer says what is in its log, in place of what it said before; one that is new itself does not count."""
        if self._left is None and self._admission.is_source(link):
            self._told[link.sid] = _Told(link.hello.origin, dict(context), trio.current_time())

    # ---- catching up

    async def run(self) -> None:
        """Compare what is asked for until all may be shown."""
        await self._admission.met.wait()
        await self._gather()
        self._look_at = trio.current_time() + COMPARE_EVERY_S
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(self._compare)
            self._may_compare.set()
            await self._catch_up()
            self._all.set()
            self._wake_all()
            nursery.cancel_scope.cancel()
        self._ready.clear()

    async def _gather(self) -> None:
        """Return once all peers have been heard from, or those that could be in time; a new node needs one."""
        await self._met_others.wait()
        with trio.move_on_after(self._timeout_s):
            await _until(lambda: all(link.sid in self._told for link in self._sources()))
        await _until(lambda: bool(self._told) or self._admission.begun.is_set())

    async def _catch_up(self) -> None:
        """Return once all is here that the peers had; or, with a database that is not new, there is no peer left."""
        alone_since = trio.current_time()
        while not await self._has_all():
            await trio.sleep(LOOK_EVERY_S if self._left is None else LEFT_EVERY_S)
            if self._sources() or not self._mastership.has_met or not self._admission.begun.is_set():
                alone_since = trio.current_time()
            elif trio.current_time() > alone_since + self._timeout_s:
                log.warning("no peer is left to catch up with: this node shows what it has")
                return

    async def _has_all(self) -> bool:
        """Whether the log is here, and all that it has not brought. With nothing postponed, the node has begun."""
        if self._left is None:
            self._forget_gone()
            if not covers(self._store.context, self._target()) and not await self._is_as_others():
                return False
            waiting = frozenset(self._store.waiting().values())
        else:
            waiting = frozenset(filter(self._store.has_waiting, self._left - self._ready))
        try:
            left = {one.key.mailbox_id for one in await self._store.read(pending_resync.load)}
        except (MailError, sqlite3.Error) as error:
            log.warning("what a state transfer has left cannot be read: %s", error)
            return False
        if not left:
            await self._admission.begin()
        self._left = waiting | left
        self._wake_all()
        return not self._left

    def _target(self) -> dict[str, int]:
        """All that peers have said they have."""
        target: dict[str, int] = {}
        for told in self._told.values():
            for origin, seq in told.context.items():
                target[origin] = max(seq, target.get(origin, 0))
        return target

    def _present(self) -> set[str]:
        """Those who have said what they had and can be reached, be it over others, in the same run of theirs."""
        origin_of = self._mastership.table.origin_of
        return {sid for sid, told in self._told.items() if origin_of(sid) == told.origin}

    def _forget_gone(self) -> None:
        """Do not wait for what only a peer has that is gone, or has lost its disk, while there is another one."""
        now, present = trio.current_time(), self._present()
        for sid in present if self._mastership.has_met else self._told:
            self._told[sid].present_at = now
        is_linked = any(link.sid in present for link in self._sources())
        for sid, told in list(self._told.items()):
            if is_linked and now > told.present_at + self._timeout_s:
                log.warning("%s is gone: what it alone had is not waited for", sid)
                del self._told[sid]

    async def _is_as_others(self) -> bool:
        """Whether this node shows what all peers show, though its log lacks what they said: a number may be wrong.

        That is looked at now and then. Mailboxes in which something goes on are compared one by one, if they are few.
        """
        if trio.current_time() < self._look_at:
            return False
        peers = self._peers()
        try:
            with trio.move_on_after(COMPARE_S) as scope:
                for sid in peers:
                    keys = (await sync_client.differing_chains(self._store, self._mastership, sid)).keys
                    if len(keys) > BUSY_MAX or not all([await self._is_whole(key) for key in keys]):
                        return False
        except (MailError, LinkDownError, sqlite3.Error) as error:
            log.info("what this node shows is not compared: %s", error)
            return False
        finally:
            self._look_at = trio.current_time() + COMPARE_EVERY_S
        if not peers or scope.cancelled_caught:
            return False
        log.warning("the log does not bring all that peers said they had; but this node shows what they show")
        return True

    def _wake_all(self) -> None:
        """Let everybody who waits for a comparison see whether that is needed still."""
        for chain_id, event in self._comparing.items():
            self._comparing[chain_id] = trio.Event()
            event.set()

    def _sources(self) -> list[PeerLink]:
        return [link for link in self._links() if self._admission.is_source(link)]

    def _peers(self) -> list[str]:
        """Those to compare with: sources, and whoever has said what it had before its link went down."""
        linked = {link.sid for link in self._sources()}
        return sorted(linked | self._present()) if linked else []

    # ---- one mailbox

    def _may_show(self, key: MailboxKey) -> bool:
        if self._all.is_set() or key.mailbox_id in self._ready:
            return True
        return self._left is not None and not {key.mailbox_id, EVERYTHING.mailbox_id} & self._left

    async def _compared(self, key: MailboxKey) -> None:
        """Return when the mailbox has been compared once more."""
        event = self._comparing.get(key.mailbox_id)
        if event is None:
            try:
                self._wanted_in.send_nowait(key)
            except trio.WouldBlock:
                await trio.sleep(LOOK_EVERY_S)
                return
            event = self._comparing[key.mailbox_id] = trio.Event()
        await event.wait()

    async def _compare(self) -> None:
        async for key in self._wanted_out:
            try:
                if await self._is_whole(key):
                    self._ready.add(key.mailbox_id)
                else:
                    await trio.sleep(LOOK_EVERY_S)
            finally:
                self._comparing.pop(key.mailbox_id).set()

    async def _is_whole(self, key: MailboxKey) -> bool:
        """Whether this node shows all of it that the peers show, now. They are asked one after the other."""
        peers = self._peers()
        for sid in peers:
            try:
                outcome = await self._reconciliation.reconcile(key, sid)
            except DamagedError:
                outcome = Outcome.DAMAGED
            except (MailError, LinkDownError, sqlite3.Error) as error:
                log.info("a mailbox of %s is not compared with %s: %s", key.user, sid, error)
                return False
            # Of a fork a node that was there shows its own branch. What a new one shows is a part of one.
            if outcome not in _WHOLE and not self._admission.begun.is_set():
                return False
        return bool(peers)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of links, which say nothing
        await trio.sleep(LOOK_EVERY_S)
