"""The links, the terms and the root of the component, as this node knows them now (design section 5).

Connects the state machines of `master_election` to the links: feeds them events and carries out their actions. What a
term means for scopes is left to `mastership`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

import trio

from master_election.election import (
    Action,
    AnswerWho,
    Election,
    ForwardWho,
    RefuseWho,
    SendDropped,
    SendRoot,
    StopMastering,
)
from master_election.links import LinkTable, LinkUpdate
from master_election.number_bounds import is_believed
from protocol.commands import Dropped, Links, Master, RefusalCode, Refused, Reply, Root, Who
from protocol.stream_codec import ProtocolError
from protocol.values import context_dots, sid_of
from replicator.config import Config
from replicator.replication import timing
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.mastership.rivals import Rivals
from replicator.store.db.entry_validation import USER_MAX_BYTES
from replicator.store.store import Store

log = logging.getLogger(__name__)

SCOPE_MAX_BYTES = USER_MAX_BYTES + 64  # a mailbox id and a user's name; limited, for millions are kept in memory

LinkTo = Callable[[str | None], PeerLink | None]


@dataclass(slots=True)
class _Question:
    """A WHO that waits for its answer. If `answer` is None, ask again."""

    answered: trio.Event = field(default_factory=trio.Event)
    answer: Master | None = None


class Elections:
    """The links that all nodes advertise, and the election of a root among them. Belongs to the event loop.

    `term_began` is called with each new term, for instance after each change of the component: nothing may be numbered
    in it before its masters are found. `routes_changed` is called after such a change. For `outlived` and `peers` see
    `Rivals`.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        *,
        clock_ms: Callable[[], int],
        peers: AbstractSet[str],
        link_to: LinkTo,
        term_began: Callable[[int], None],
        routes_changed: Callable[[], None],
        outlived: Callable[[str], None],
    ) -> None:
        self.table = LinkTable(store.origin, clock_ms, config.node.priority, removed=config.node.removed)
        self.sid = self.table.sid
        self.machine = Election(self.table)
        self._store = store
        self._clock_ms = clock_ms
        self._link_to = link_to
        self._timeout_s = config.mastership.timeout_s
        self._term_began = term_began
        self._routes_changed = routes_changed
        self._rivals = Rivals(store.origin, self._timeout_s, peers=peers, link_to=link_to, outlived=outlived)
        self._ahead: set[str] = set()  # configured neighbours already logged for impossible numbers
        self._questions: dict[int, _Question] = {}  # by request; each waits for `timeout_s` at most
        self._asked = 0
        # Not bounded here: the election holds no more questions than `MAX_HELD`.
        self._work_in, self._work_out = trio.open_memory_channel[Callable[[], Awaitable[object]]](math.inf)

    # ---- events

    def link_up(self, link: PeerLink) -> None:
        """Advertise a link that has come up; nothing has been sent over it before."""
        self._links_changed(self.table.neighbour_up(link.sid, link.round_trip_us))

    def link_down(self, sid: str) -> None:
        """Advertise the end of a link."""
        self._links_changed(self.table.neighbour_down(sid))

    def reconfigure(self, priority: int, removed: Collection[str]) -> None:
        """Take over another priority of this node, and the nodes that have left for good."""
        self._links_changed(self.table.set_removed(removed))
        self._links_changed(self.table.set_priority(priority))

    def received(self, link: PeerLink, command: Links | Root | Dropped) -> None:
        """Handle a neighbour's LINKS, ROOT or DROPPED.

        Numbers too far ahead are ignored, because the neighbour may pass them on in good faith. Raises ProtocolError if
        LINKS name another origin than the neighbour's HELLO.
        """
        match command:
            case Links(adverts) if any(
                advert.sid == link.sid and advert.origin != link.hello.origin for advert in adverts
            ):
                raise ProtocolError(f"its LINKS name another origin than its HELLO, {link.hello.origin}")
            case Links(adverts):
                update = self.table.receive(adverts, link.sid)
                if update.unbelieved is not None:
                    self._passed_over(link.sid, f"LINKS of {update.unbelieved.sid}", update.unbelieved.sequence)
                self._links_changed(update)
            case Root(term) | Dropped(term) if not is_believed(term, self._clock_ms()):
                self._passed_over(link.sid, type(command).__name__.upper(), term)
            case Root():
                self._do(self.machine.receive_root(command, link.sid))
            case Dropped():
                self._do(self.machine.receive_dropped(command, link.sid))

    async def run(self, heartbeat_s: float) -> None:
        """Run the work queued by `later`, and the heartbeat, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat, heartbeat_s)
            async for work in self._work_out:
                nursery.start_soon(work)

    def later(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run the work as a separate task, which ends with this node."""
        self._work_in.send_nowait(work)

    # ---- questions

    def ships(self, origin: str, neighbour: str) -> bool:
        """See `log.sender.Ships`."""
        return self.table.ships(origin, neighbour)

    def owed(self, sid: str) -> dict[str, int]:
        """See `writes.lagging_peers.Owed`.

        A node that is no neighbour acknowledges to this node only entries that were numbered here, so only these count.
        """
        is_neighbour = self._link_to(sid) is not None
        authors = {
            author
            for author in {*map(sid_of, self._store.context)} - {sid}
            if author == self.sid or (is_neighbour and self.ships(author, sid))
        }
        return {origin: seq for origin, seq in self._store.context.items() if sid_of(origin) in authors}

    def toward(self, sid: str) -> PeerLink | None:
        """Return the link by which a node is reached, if it can be."""
        return self._link_to(self.table.next_hop(sid))

    async def ask(self, who: Who) -> Master | None:
        """Return the root's answer; None if there is none now."""
        self._asked += 1
        request_id, question = self._asked, _Question()
        self._questions[request_id] = question
        try:
            self._do(self.machine.receive_who(who, request_id))
            with trio.move_on_after(self._timeout_s):
                await question.answered.wait()
            return question.answer
        finally:
            del self._questions[request_id]
            self.machine.forget_who(request_id)

    async def answer_who(self, who: Who) -> Reply:
        """Answer a neighbour's WHO. Raises ProtocolError for a scope longer than any valid one."""
        if len(who.scope.encode()) > SCOPE_MAX_BYTES:
            raise ProtocolError(f"a WHO asks for a scope of more than {SCOPE_MAX_BYTES} bytes")
        return await self.ask(who) or Refused(RefusalCode.UNAVAILABLE, "another term has begun; ask again")

    # ---- doing what the machines say

    def _links_changed(self, update: LinkUpdate) -> None:
        for flood in update.floods:
            self._post(flood.to, Links(flood.adverts))
        if update.rival is not None:
            self._rivals.meet(update.rival)
        if update.component_changed:
            self._do(self.machine.component_changed())
        if update.routes_changed:
            self._routes_changed()

    def _passed_over(self, sid: str, what: str, number: int) -> None:
        if sid not in self._ahead:
            self._ahead.add(sid)
            log.warning(
                "ignoring %s from %s: its number %d is impossibly high, so one of the nodes is faulty; more of"
                " these are ignored without notice",
                what,
                sid,
                number,
            )

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case StopMastering(term):
                    self._term_began(term)
                    self.later(partial(self._drop, term))
                case SendRoot(to, root):
                    self._post(to, root)
                case SendDropped(to, dropped):
                    self._post(to, dropped)
                case AnswerWho(request_id, master):
                    self._answered(request_id, master)
                case RefuseWho(request_id):
                    self._answered(request_id, None)
                case ForwardWho():
                    self.later(partial(self._pass_on, action))

    async def _drop(self, term: int) -> None:
        """Flush, then report DROPPED: all numbered changes must be on disk and in the context before others number."""
        await self._store.flush()
        context = context_dots(self._store.context)
        self._do(self.machine.masters_dropped(term, context))

    async def _beat(self, heartbeat_s: float) -> None:
        refreshed_at = trio.current_time()
        while True:
            await trio.sleep(heartbeat_s)
            if trio.current_time() >= refreshed_at + timing.ELECTIONS_REFRESH_S:
                refreshed_at = trio.current_time()
                self._links_changed(self.table.refresh())
            self._links_changed(self.table.tick())
            self._do(self.machine.tick())

    async def _pass_on(self, who: ForwardWho) -> None:
        link = self._link_to(who.to)
        reply = None
        if link is not None:
            try:
                with trio.move_on_after(self._timeout_s):
                    reply = await link.request(who.who)
            except LinkDownError:
                pass
        self._answered(who.request_id, reply if isinstance(reply, Master) else None)

    def _answered(self, request_id: int, answer: Master | None) -> None:
        question = self._questions.get(request_id)
        if question is not None:
            question.answer = answer
            question.answered.set()

    def _post(self, to: str, command: Links | Root | Dropped) -> None:
        link = self._link_to(to)
        if link is not None:
            link.post(command)
