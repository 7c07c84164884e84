"""Who numbers a mailbox's changes, as this node knows it now (design section 5).

Puts the state machines of `master_election` between the links: it feeds them events and does what they say. A node
that has just become a mailbox's master first compares the heads of that mailbox with the other nodes and catches
up; it numbers after that, or after `timeout_s` at the latest.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
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
from master_election.masters import Masters, ScopePolicy, scope_of
from protocol.codec import ProtocolError
from protocol.commands import Dropped, Links, Master, RefusalCode, Refused, Reply, Root, Who
from protocol.values import Dot
from replicator.replication.link import LinkDownError, PeerLink
from replicator.store.reading import MailboxKey
from replicator.store.store import Store

COUNT_MAX = 1 << 61  # of terms and adverts: ours must be able to go above any other
RETRY_S = 0.05  # before a question is asked again that nobody could answer

LinkTo = Callable[[str | None], PeerLink | None]
CatchUp = Callable[[MailboxKey], Awaitable[None]]


@dataclass(slots=True)
class _Question:
    """A WHO that waits for its answer. `master` None: ask again."""

    answered: trio.Event = field(default_factory=trio.Event)
    master: str | None = None


class Mastership:
    """Belongs to the event loop. `catch_up` compares one mailbox with the other nodes."""

    def __init__(
        self,
        sid: str,
        store: Store,
        *,
        clock_ms: int,
        policy: ScopePolicy,
        priorities: Mapping[str, int],
        link_to: LinkTo,
        catch_up: CatchUp,
        timeout_s: float,
        routes_changed: Callable[[], None],
    ) -> None:
        self.sid = sid
        self.table = LinkTable(sid, clock_ms)
        self.election = Election(self.table, priorities)
        self.masters = Masters(sid)
        self._store = store
        self._policy = policy
        self._link_to = link_to
        self._catch_up = catch_up
        self._timeout_s = timeout_s
        self._routes_changed = routes_changed
        self._ready: set[bytes] = set()
        self._readying: dict[bytes, trio.Event] = {}
        self._questions: dict[int, _Question] = {}
        self._asked = 0
        # Not bounded here: the election holds no more questions than `MAX_HELD`.
        self._work_in, self._work_out = trio.open_memory_channel[Callable[[], Awaitable[None]]](math.inf)

    # ---- events

    def link_up(self, link: PeerLink) -> None:
        """A link stands; nothing but this has been sent over it."""
        self._links_changed(self.table.neighbour_up(link.sid, link.round_trip_us))

    def link_down(self, sid: str) -> None:
        """A link has ended."""
        self._links_changed(self.table.neighbour_down(sid))

    def received(self, link: PeerLink, command: Links | Root | Dropped) -> None:
        """A neighbour speaks. Raises ProtocolError for numbers that nobody has counted up to."""
        match command:
            case Links(adverts) if all(advert.sequence < COUNT_MAX for advert in adverts):
                self._links_changed(self.table.receive(adverts, link.sid))
            case Root(term) if term < COUNT_MAX:
                self._do(self.election.receive_root(command, link.sid))
            case Dropped(term) if term < COUNT_MAX:
                self._do(self.election.receive_dropped(command, link.sid))
            case _:
                raise ProtocolError(f"a {type(command).__name__.upper()} counts beyond {COUNT_MAX}")

    async def run(self, heartbeat_s: float) -> None:
        """Do what takes time, and keep the root's heartbeat, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat, heartbeat_s)
            async for work in self._work_out:
                nursery.start_soon(work)

    # ---- questions

    def ships(self, origin: str, neighbour: str) -> bool:
        """See `shipping.Ships`."""
        return self.table.ships(origin, neighbour)

    def toward(self, sid: str) -> PeerLink | None:
        """The link by which a node is reached."""
        return self._link_to(self.table.next_hop(sid))

    def scope(self, key: MailboxKey) -> str:
        """What has one master together with this mailbox."""
        return scope_of(self._policy, key.user, key.mailbox_id)

    def known_master(self, key: MailboxKey) -> str | None:
        """The mailbox's master, if this node knows it without asking."""
        return self.masters.master(self.scope(key))

    def may_number(self, key: MailboxKey) -> bool:
        """Whether this node may number the mailbox's changes at this moment."""
        return key.mailbox_id in self._ready and self.known_master(key) == self.sid

    async def find(self, key: MailboxKey) -> str:
        """The mailbox's master; this node, if nobody was and it asks first. Waits while a term settles."""
        scope = self.scope(key)
        while True:
            known = self.masters.master(scope)
            if known is not None:
                return known
            term = self.masters.term
            answer = await self._ask(scope, self.sid)
            if answer is None:
                await trio.sleep(RETRY_S)
            else:
                self.masters.learn(scope, answer, term)

    async def answer_who(self, who: Who) -> Reply:
        """A neighbour asks."""
        master = await self._ask(who.scope, who.candidate)
        return Master(master) if master else Refused(RefusalCode.UNAVAILABLE, "a new term has begun; ask again")

    def forget(self, key: MailboxKey) -> None:
        """The master said that it is not."""
        self.masters.forget(self.scope(key))

    async def get_ready(self, key: MailboxKey) -> None:
        """Before this node numbers its first change to a mailbox: see what the others have of it."""
        if (running := self._readying.get(key.mailbox_id)) is not None:
            await running.wait()
            return
        done = self._readying[key.mailbox_id] = trio.Event()
        term = self.masters.term
        try:
            with trio.move_on_after(self._timeout_s):
                await self._catch_up(key)
            if term == self.masters.term:
                self._ready.add(key.mailbox_id)
        finally:
            del self._readying[key.mailbox_id]
            done.set()

    # ---- doing what the machines say

    def _links_changed(self, update: LinkUpdate) -> None:
        for flood in update.floods:
            self._post(flood.to, Links(flood.adverts))
        if update.component_changed:
            self._do(self.election.component_changed())
        if update.routes_changed:
            self._routes_changed()

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case StopMastering(term):
                    self.masters.begin(term)
                    self._ready.clear()
                    self._work_in.send_nowait(partial(self._drop, term))
                case SendRoot(to, root):
                    self._post(to, root)
                case SendDropped(to, dropped):
                    self._post(to, dropped)
                case AnswerWho(request_id, master):
                    self._answered(request_id, master)
                case RefuseWho(request_id):
                    self._answered(request_id, None)
                case ForwardWho():
                    self._work_in.send_nowait(partial(self._pass_on, action))

    async def _drop(self, term: int) -> None:
        """What was numbered before must be on disk, and so in the context, before anyone else numbers."""
        await self._store.flush()
        context = tuple(Dot(origin, seq) for origin, seq in sorted(self._store.context.items()))
        self._do(self.election.masters_dropped(term, context))

    async def _beat(self, heartbeat_s: float) -> None:
        while True:
            await trio.sleep(heartbeat_s)
            self._do(self.election.tick())

    async def _ask(self, scope: str, candidate: str) -> str | None:
        self._asked += 1
        request_id, question = self._asked, _Question()
        self._questions[request_id] = question
        try:
            self._do(self.election.receive_who(scope, candidate, request_id))
            with trio.move_on_after(self._timeout_s):
                await question.answered.wait()
            return question.master
        finally:
            del self._questions[request_id]
            self.election.forget_who(request_id)

    async def _pass_on(self, who: ForwardWho) -> None:
        link = self._link_to(who.to)
        master = None
        if link is not None:
            try:
                with trio.move_on_after(self._timeout_s):
                    match await link.request(Who(who.scope, who.candidate)):
                        case Master(sid):
                            master = sid
                        case _:
                            pass
            except LinkDownError:
                pass
        self._answered(who.request_id, master)

    def _answered(self, request_id: int, master: str | None) -> None:
        question = self._questions.get(request_id)
        if question is not None:
            question.master = master
            question.answered.set()

    def _post(self, to: str, command: Links | Root | Dropped) -> None:
        link = self._link_to(to)
        if link is not None:
            link.post(command)
