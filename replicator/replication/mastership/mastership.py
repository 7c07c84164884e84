"""The masters of mailboxes, as this node knows them now (design section 5).

Connects the state machines of `master_election` to the links: feeds them events and carries out their actions. A node
that has just become a mailbox's master first compares the mailbox's head with the other nodes and catches up; it
numbers after that, or after `timeout_s` at the latest. A node that has stood still masters nothing until it has met its
peers again, or `timeout_s` have passed. `handover` moves scopes between nodes.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
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
from master_election.masters import Masters
from master_election.number_bounds import is_believed
from master_election.scope_record import Standing
from master_election.scopes import ScopePolicy, scope_of, wider
from protocol.commands import Dropped, LinkAdvert, Links, Master, RefusalCode, Refused, Reply, Root, Who
from protocol.stream_codec import ProtocolError
from protocol.values import context_dots, is_older
from replicator.replication import timing
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.mastership.stall_detector import StallDetector
from replicator.signals import Signal
from replicator.store.db.entry_validation import USER_MAX_BYTES
from replicator.store.db.queries import MailboxKey
from replicator.store.store import Store

log = logging.getLogger(__name__)

SCOPE_MAX_BYTES = USER_MAX_BYTES + 64  # a mailbox id and a user's name; limited, for millions are kept in memory

LinkTo = Callable[[str | None], PeerLink | None]
CatchUp = Callable[[MailboxKey], Awaitable[None]]


@dataclass(slots=True)
class _Question:
    """A WHO that waits for its answer. If `answer` is None, ask again."""

    answered: trio.Event = field(default_factory=trio.Event)
    answer: Master | None = None


@dataclass(slots=True)
class _Rival:
    """Another run of this node that answers this run's advertisements: from `since` to `until` without a pause."""

    since: float
    until: float
    is_told: bool = False


class Mastership:
    """The masters of all scopes, and the mailboxes that this node may number. Belongs to the event loop.

    `catch_up` compares one mailbox with the other nodes and fetches what is missing. `peers` are the configured SIDs.
    `outlived` is called with the origin of an older run of this node that is alive too.
    """

    def __init__(
        self,
        sid: str,
        store: Store,
        *,
        clock_ms: Callable[[], int],
        policy: ScopePolicy,
        priority: int,
        peers: AbstractSet[str],
        pulse: StallDetector,
        link_to: LinkTo,
        catch_up: CatchUp,
        timeout_s: float,
        routes_changed: Callable[[], None],
        outlived: Callable[[str], None],
    ) -> None:
        self.sid = sid
        self.table = LinkTable(store.origin, clock_ms, priority)
        self._clock_ms = clock_ms
        self._ahead: set[str] = set()  # neighbours that were logged for numbers too far ahead
        self.election = Election(self.table)
        self.masters = Masters(sid)
        self._store = store
        self._policy = policy
        self._peers = peers
        self._pulse = pulse
        self._link_to = link_to
        self._catch_up = catch_up
        self._timeout_s = timeout_s
        self._routes_changed = routes_changed
        self._outlived = outlived
        self._rivals: dict[tuple[str, bool], _Rival] = {}  # keys: origin, and True if that run is to stay
        self._ready: dict[bytes, int] = {}  # mailbox id -> how often its scope had been given away when it got ready
        self._given: Counter[str] = Counter()  # scope -> times given away in this term
        self._readying: dict[bytes, trio.Event] = {}
        self._questions: dict[int, _Question] = {}
        self._asked = 0
        self._move_ended = Signal()
        self._met = trio.Event()  # set when this node has met its peers since it stood still
        self._met.set()
        # Not bounded here: the election holds no more questions than `MAX_HELD`.
        self._work_in, self._work_out = trio.open_memory_channel[Callable[[], Awaitable[object]]](math.inf)

    # ---- events

    def link_up(self, link: PeerLink) -> None:
        """Advertise a link that has come up; nothing has been sent over it before."""
        self._links_changed(self.table.neighbour_up(link.sid, link.round_trip_us))

    def link_down(self, sid: str) -> None:
        """Advertise the end of a link."""
        self._links_changed(self.table.neighbour_down(sid))

    def went_on(self) -> None:
        """Handle that this node has stood still: it masters nothing until it has met its peers or had time for that."""
        self._met.set()
        self._met = trio.Event()
        self.later(partial(self._wait_for_peers, self._met))
        self._note_met()

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
                self._do(self.election.receive_root(command, link.sid))
            case Dropped():
                self._do(self.election.receive_dropped(command, link.sid))

    async def run(self, heartbeat_s: float) -> None:
        """Run the work queued by `later`, and the heartbeat, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat, heartbeat_s)
            async for work in self._work_out:
                nursery.start_soon(work)

    # ---- questions

    def ships(self, origin: str, neighbour: str) -> bool:
        """See `log.sender.Ships`."""
        return self.table.ships(origin, neighbour)

    def toward(self, sid: str) -> PeerLink | None:
        """Return the link by which a node is reached, if it can be."""
        return self._link_to(self.table.next_hop(sid))

    def scope(self, key: MailboxKey) -> str:
        """Return the scope that contains the mailbox: all of it has one master."""
        return scope_of(self._policy, key.user, key.mailbox_id)

    def known_master(self, key: MailboxKey) -> str | None:
        """Return the mailbox's master, if this node knows it without asking."""
        return self.masters.master(self.scope(key))

    def may_number(self, key: MailboxKey) -> bool:
        """Return True if this node may number the mailbox's changes at this moment."""
        return self._ready.get(key.mailbox_id) == self._times_given(self.scope(key)) and self.is_ours(key)

    def is_ours(self, key: MailboxKey) -> bool:
        """Return True if this node masters the mailbox now and has not stood still. Any thread may call this."""
        return not self._pulse.is_missing and self.masters.is_ours(self.scope(key))

    async def find(self, key: MailboxKey) -> str:
        """Return the mailbox's master: this node, if there was none and this node asks first.

        Waits while a term settles, while the scope moves, and until this node has met its peers after it stood still.
        """
        scope = self.scope(key)
        while True:
            await self.meet()
            while self.masters.is_moving(scope):
                await self._move_ended.wait()
            known = self.masters.master(scope)
            if known is not None:
                return known
            term, moves = self.masters.term, self.masters.moves(scope)
            answer = await self.ask(Who(term, scope, self.sid))
            if answer is None:
                await trio.sleep(timing.MASTERSHIP_RETRY_S)
            elif self.has_met:
                self.masters.learn(scope, answer.sid, term, answer.covering, moves)

    @property
    def has_met(self) -> bool:
        """True if this node knows which nodes it can reach: it had time to meet its peers since it last stood still."""
        return self._met.is_set() and not self._pulse.is_missing

    async def meet(self) -> None:
        """Wait until `has_met`."""
        self._pulse.beat()
        while not self._met.is_set():
            await self._met.wait()

    async def root_names(self, key: MailboxKey) -> str | None:
        """Return the master that the root names, if this node remembers any; None otherwise, or without an answer.

        For display only, not to be learned: the root does not know yet what this node is giving away at this moment.
        """
        known = self.known_master(key)
        answer = None if known is None else await self.ask(Who(self.masters.term, self.scope(key), known))
        return None if answer is None else answer.sid

    async def answer_who(self, who: Who) -> Reply:
        """Answer a neighbour's WHO. Raises ProtocolError for a scope longer than any valid one."""
        if len(who.scope.encode()) > SCOPE_MAX_BYTES:
            raise ProtocolError(f"a WHO asks for a scope of more than {SCOPE_MAX_BYTES} bytes")
        return await self.ask(who) or Refused(RefusalCode.UNAVAILABLE, "another term has begun; ask again")

    def bounced(self, key: MailboxKey) -> None:
        """Note that the mailbox's supposed master denies being it or cannot be reached."""
        self.masters.bounced(self.scope(key))

    def named(self, key: MailboxKey, master: str, asked_in: int) -> None:
        """Note that a reply names another master than the node that was asked: all or part of the scope may have moved.

        `asked_in` is the term of the question.
        """
        scope = self.scope(key)
        if self.masters.standing(scope) is Standing.ELSEWHERE and master != self.sid:
            self.masters.learn(scope, master, asked_in)

    async def get_ready(self, key: MailboxKey) -> None:
        """Catch up with the other nodes before this node numbers its first change to a mailbox."""
        if (running := self._readying.get(key.mailbox_id)) is not None:
            await running.wait()
            return
        done = self._readying[key.mailbox_id] = trio.Event()
        term = self.masters.term
        try:
            with trio.move_on_after(self._timeout_s):
                await self._catch_up(key)
            if self.is_ours(key):
                self.is_ready(key, term)
        finally:
            del self._readying[key.mailbox_id]
            done.set()

    # ---- as `handover` needs it

    def is_ready(self, key: MailboxKey, term: int) -> None:
        """Note that this node has, in that term, all that the previous master had of the mailbox."""
        if term == self.masters.term:
            self._ready[key.mailbox_id] = self._times_given(self.scope(key))

    def not_ready(self, scope: str) -> None:
        """Note that a scope is given away: its mailboxes must be compared again when it comes back."""
        self._given[scope] += 1

    def _times_given(self, scope: str) -> int:
        around = wider(scope)
        return self._given[scope] + (self._given[around] if around is not None else 0)

    def move_ended(self) -> None:
        """Wake the tasks that wait for the end of a move."""
        self._move_ended.notify()

    def later(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run the work as a separate task, which ends with this node."""
        self._work_in.send_nowait(work)

    # ---- doing what the machines say

    def _links_changed(self, update: LinkUpdate) -> None:
        for flood in update.floods:
            self._post(flood.to, Links(flood.adverts))
        if update.rival is not None:
            self._meet(update.rival)
        if update.component_changed:
            self._do(self.election.component_changed())
            self._note_met()
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

    async def _wait_for_peers(self, met: trio.Event) -> None:
        with trio.move_on_after(self._timeout_s):
            await met.wait()
        met.set()

    def _note_met(self) -> None:
        if self._peers <= set(self.table.component):
            self._met.set()

    def _meet(self, advert: LinkAdvert) -> None:
        """Handle an advertisement by which another run of this node overrules this one.

        This run ends only if the other one is to stay, and if it answers long enough: leftovers of a past run and
        single wrong advertisements do not come again and again.
        """
        now, origin = trio.current_time(), advert.origin
        self._rivals = {key: rival for key, rival in self._rivals.items() if now - rival.until <= self._timeout_s}
        stays = is_older(origin, self.table.origin) and self._can_be_linked(advert)
        rival = self._rivals.setdefault((origin, stays), _Rival(now, now))
        rival.until = now
        if rival.is_told or now - rival.since < 2 * self._timeout_s:
            return
        rival.is_told = True
        if stays:
            self._outlived(origin)
        else:
            log.warning(
                "other nodes keep reporting that %s also runs as %s, and this process, %s, stays: stop the other"
                " one; if there is none, one of the nodes is faulty",
                self.sid,
                origin,
                self.table.origin,
            )

    def _can_be_linked(self, rival: LinkAdvert) -> bool:
        """Return True if the other run has a link to a peer that is not linked to this run.

        A peer has only one link to a node.
        """
        return any(near in self._peers and self._link_to(near) is None for near, _ in rival.neighbours)

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case StopMastering(term):
                    self.masters.begin(term)
                    self._ready.clear()
                    self._given.clear()
                    self.move_ended()
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
        self._do(self.election.masters_dropped(term, context))

    async def _beat(self, heartbeat_s: float) -> None:
        refreshed_at = trio.current_time()
        while True:
            await trio.sleep(heartbeat_s)
            if trio.current_time() >= refreshed_at + timing.MASTERSHIP_REFRESH_S:
                refreshed_at = trio.current_time()
                self._links_changed(self.table.refresh())
            self._links_changed(self.table.tick())
            self._do(self.election.tick())

    async def ask(self, who: Who) -> Master | None:
        """Return the root's answer; None if there is none now."""
        self._asked += 1
        request_id, question = self._asked, _Question()
        self._questions[request_id] = question
        try:
            self._do(self.election.receive_who(who, request_id))
            with trio.move_on_after(self._timeout_s):
                await question.answered.wait()
            return question.answer
        finally:
            del self._questions[request_id]
            self.election.forget_who(request_id)

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
