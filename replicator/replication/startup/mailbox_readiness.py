"""Decides which mailboxes a freshly started node may show (design section 7).

The node may have been away for long, or have lost its disk: then it shows an older or partial state of what its clients
have seen elsewhere, under the right UIDVALIDITY, and they would drop mail from their caches. So the node first hears,
by the LOG of its peers, what they have. Once its own log has all of that, and it has taken over what they show ahead of
their logs, it shows everything. Before, each mailbox and tree that a client asks for is compared with the peers at
once, and taken over from them where this node is behind. The same is done later with mailboxes that the log alone does
not complete: those that a state transfer has postponed, and those with entries that wait. A new node has not begun
while any mailbox is postponed.

All of this holds for one start. A node that is cut off or reaches no peer goes on with the data that it has, unless its
database is new.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from protocol.values import Context, Dot, covers
from replicator.errors import MailError, NotReadyError
from replicator.replication import timing
from replicator.replication.convergence import sync_client
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.convergence.sync_client import DamagedError
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.parallel import in_turns
from replicator.replication.startup.node_admission import Admission
from replicator.store.db.queries import MailboxKey
from replicator.store.log import pending_resync
from replicator.store.log.pending_resync import EVERYTHING
from replicator.store.store import Store

log = logging.getLogger(__name__)

BUSY_MAX = 100  # mailboxes that may differ for a moment because clients are changing them
AT_ONCE = 8  # mailboxes that are compared at the same time
WANTED_MAX = 1000  # mailboxes that wait for their comparison

_WHOLE = {Outcome.SAME, Outcome.ADOPTED, Outcome.MERGED, Outcome.AHEAD}


@dataclass(slots=True)
class _Told:
    """A peer's reported context, and the time when that run of the peer could last be reached."""

    origin: str
    context: Context
    present_at: float


class Readiness:
    """The mailboxes that may be shown already. Belongs to the event loop.

    `compare_all`: see `AntiEntropy.compare`. `links` returns the links that are up; `met_others` is set once there was
    time to meet all peers.
    """

    def __init__(
        self,
        store: Store,
        admission: Admission,
        mastership: Mastership,
        reconciliation: Reconciliation,
        links: Callable[[], Sequence[PeerLink]],
        *,
        compare_all: Callable[[str], Awaitable[bool]],
        met_others: trio.Event,
        timeout_s: float,
    ) -> None:
        self._store = store
        self._admission = admission
        self._mastership = mastership
        self._reconciliation = reconciliation
        self._compare_all = compare_all
        self._links = links
        self._met_others = met_others
        self._timeout_s = timeout_s
        self._told: dict[str, _Told] = {}  # SID of a peer -> its report
        self._all = trio.Event()  # set once everything may be shown
        # Mailboxes and trees that the log has not completed; None: the log itself is not here yet.
        self._left: frozenset[bytes] | None = None
        self._may_compare = trio.Event()
        self._ready: set[bytes] = set()
        self._comparing: dict[bytes, trio.Event] = {}
        self._look_at = 0.0  # time of the next comparison of the whole state
        self._wanted_in, self._wanted_out = trio.open_memory_channel[MailboxKey](WANTED_MAX)

    # ---- for code that shows or numbers mailboxes

    async def wait(self, key: MailboxKey) -> None:
        """Return once the mailbox or tree may be shown. Raises NotReadyError if that takes too long."""
        if self._may_show(key):
            return
        await self._admission.wait()
        with trio.move_on_after(timing.READINESS_PATIENCE_S):
            await self._may_compare.wait()
            while not self._may_show(key):
                await self._compared(key)
            return
        raise NotReadyError("this node has yet to catch up with the other nodes; no mail is lost; try again later")

    async def wait_to_number(self, key: MailboxKey) -> None:
        """Wait as `wait` does, for a change to be numbered, but only if the database is new.

        An older database knows at least which UIDs the node itself has shown.
        """
        if not self._admission.begun.is_set():
            await self.wait(key)

    def problem(self) -> str | None:
        """Return, for the operator, why not everything is shown; None if it is."""
        if self._all.is_set() or not self._admission.met.is_set() or not self._admission.has_peers:
            return None
        if self._left is not None and self._admission.begun.is_set():
            return None  # a few mailboxes that must be compared first do not keep clients from all others
        if self._left is not None:
            return (
                "this node's database is new, and a state transfer has left mailboxes that differ from those of"
                " other nodes: they are compared every minute; see `replicator status`, and `replicator resync"
                " --all`"
            )
        if not self._may_compare.is_set():
            return "this node has just started and waits to hear what the other nodes have"
        context = self._store.context
        lacking = sum(max(0, seq - context.get(origin, 0)) for origin, seq in self._target().items())
        return (
            f"this node lacks {lacking} entries that {', '.join(sorted(self._told))} had when this node started; each"
            " mailbox is shown once it has been compared"
        )

    # ---- events

    def heard(self, link: PeerLink, context: Sequence[Dot]) -> None:
        """Note a peer's reported context, in place of its earlier one; reports of new peers are ignored."""
        if self._left is None and self._admission.is_source(link):
            self._told[link.sid] = _Told(link.hello.origin, dict(context), trio.current_time())

    # ---- catching up

    async def run(self) -> None:
        """Compare requested mailboxes until everything may be shown."""
        await self._admission.met.wait()
        await self._gather()
        self._look_at = trio.current_time() + timing.READINESS_COMPARE_EVERY_S
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
        """Return once all linked peers have reported, or the time for that is over; a new node needs one report."""
        await self._met_others.wait()
        with trio.move_on_after(self._timeout_s):
            await _until(lambda: all(link.sid in self._told for link in self._sources()))
        await _until(lambda: bool(self._told) or self._admission.begun.is_set())

    async def _catch_up(self) -> None:
        """Return once this node has all that the peers had; or no peer is left, and the database is not new."""
        alone_since = trio.current_time()
        while not await self._has_all():
            await trio.sleep(timing.READINESS_LOOK_EVERY_S if self._left is None else timing.READINESS_LEFT_EVERY_S)
            if self._sources() or not self._mastership.has_met or not self._admission.begun.is_set():
                alone_since = trio.current_time()
            elif trio.current_time() > alone_since + self._timeout_s:
                log.warning("no peer is left to catch up with: this node shows what it has")
                return

    async def _has_all(self) -> bool:
        """Return True if the log is here, and all mailboxes that it does not complete; update `_left`.

        The node begins as soon as no mailbox is postponed.
        """
        if self._left is None:
            self._forget_gone()
            if not await self._has_all_shown():
                return False
            waiting = frozenset(self._store.waiting.values())
        else:
            waiting = frozenset(filter(self._store.has_waiting, self._left - self._ready))
        try:
            left = {one.key.mailbox_id for one in await self._store.read(pending_resync.load)}
        except MailError as error:
            log.warning("cannot read which mailboxes a state transfer has left different: %s", error)
            return False
        if not left:
            await self._admission.begin()
        self._left = waiting | left
        self._wake_all()
        return not self._left

    def _target(self) -> dict[str, int]:
        """Return the union of the contexts that peers have reported."""
        target: dict[str, int] = {}
        for told in self._told.values():
            for origin, seq in told.context.items():
                target[origin] = max(seq, target.get(origin, 0))
        return target

    def _present(self) -> set[str]:
        """Return the peers that have reported and can be reached in the same run, directly or over other nodes."""
        origin_of = self._mastership.table.origin_of
        return {sid for sid, told in self._told.items() if origin_of(sid) == told.origin}

    def _forget_gone(self) -> None:
        """Drop reports of peers that are gone or have lost their disks, while another reporting peer is linked.

        So this node does not wait for entries that only such a peer had.
        """
        now, present = trio.current_time(), self._present()
        for sid in present if self._mastership.has_met else self._told:
            self._told[sid].present_at = now
        is_linked = any(link.sid in present for link in self._sources())
        for sid, told in list(self._told.items()):
            if is_linked and now > told.present_at + self._timeout_s:
                log.warning("%s is gone: this node no longer waits for entries that only that node had", sid)
                del self._told[sid]

    async def _has_all_shown(self) -> bool:
        """Return True if this node has all that peers said they have.

        What they show ahead of their logs is then taken over, as far as they answer soon.
        """
        if not covers(self._store.context, self._target()):
            return await self._is_as_others()
        with trio.move_on_after(self._timeout_s):
            await in_turns(self._compare_all, self._peers(), AT_ONCE)
        return True

    async def _is_as_others(self) -> bool:
        """Return True if this node shows what all peers show, even if its log lacks entries that they reported.

        A reported number may be wrong. The comparison is made every `READINESS_COMPARE_EVERY_S`. Mailboxes that differ,
        perhaps because clients are changing them, are compared one by one if they are few.
        """
        if trio.current_time() < self._look_at:
            return False
        peers = self._peers()
        try:
            with trio.move_on_after(timing.READINESS_COMPARE_S) as scope:
                for sid in peers:
                    compared = sync_client.node_difference(self._store, self._mastership, sid, at_most=BUSY_MAX)
                    async with compared as difference:
                        lacking = len(difference.differing) + len(difference.missing)
                        keys = await difference.keys() if lacking <= BUSY_MAX else None
                    if keys is None or not all([await self._is_whole(key) for key in keys]):
                        return False
        except (MailError, LinkDownError) as error:
            log.info("cannot compare this node with its peers: %s", error)
            return False
        finally:
            self._look_at = trio.current_time() + timing.READINESS_COMPARE_EVERY_S
        if not peers or scope.cancelled_caught:
            return False
        log.warning("the log has not brought all entries that peers reported, but this node shows the same as they do")
        return True

    def _wake_all(self) -> None:
        """Wake all tasks that wait for a comparison, to check if they still need it."""
        for chain_id, event in self._comparing.items():
            self._comparing[chain_id] = trio.Event()
            event.set()

    def _sources(self) -> list[PeerLink]:
        return [link for link in self._links() if self._admission.is_source(link)]

    def _peers(self) -> list[str]:
        """Return the nodes to compare with: linked sources, and reachable peers that have reported; none if no link.

        The latter may have reported before their link went down.
        """
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
                await trio.sleep(timing.READINESS_LOOK_EVERY_S)
                return
            event = self._comparing[key.mailbox_id] = trio.Event()
        await event.wait()

    async def _compare(self) -> None:
        async for key in self._wanted_out:
            try:
                if await self._is_whole(key):
                    self._ready.add(key.mailbox_id)
                else:
                    await trio.sleep(timing.READINESS_LOOK_EVERY_S)
            finally:
                self._comparing.pop(key.mailbox_id).set()

    async def _is_whole(self, key: MailboxKey) -> bool:
        """Reconcile a mailbox or tree with each peer in turn; return True if this node now shows all that they show."""
        peers = self._peers()
        for sid in peers:
            try:
                outcome = await self._reconciliation.reconcile(key, sid)
            except DamagedError:
                outcome = Outcome.DAMAGED
            except (MailError, LinkDownError) as error:
                log.info("cannot compare a mailbox of %s with %s: %s", key.user, sid, error)
                return False
            # In a fork an old node goes on showing its own branch, but a new node shows only a part of a branch.
            if outcome not in _WHOLE and not self._admission.begun.is_set():
                return False
        return bool(peers)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - links signal no event for this
        await trio.sleep(timing.READINESS_LOOK_EVERY_S)
