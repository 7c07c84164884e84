"""The masters of mailboxes, as this node knows them now (design section 5).

`masters` has what is known, a record for each scope; `elections` asks the root for the rest. A node that has just
become a mailbox's master first compares the mailbox's head with the other nodes and catches up; it numbers after that,
or after `timeout_s` at the latest. A node that has stood still masters nothing until it has met its peers again, or
`timeout_s` have passed; one that is about to stop numbers nothing more. `handover` moves scopes between nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from functools import partial

import trio

from master_election.known_masters import KnownMasters
from master_election.scope_record import Standing
from master_election.scopes import ScopePolicy, scope_of
from protocol.commands import Who
from replicator.config import MastershipConfig
from replicator.replication import timing
from replicator.replication.links.link import PeerLink
from replicator.replication.mastership.elections import Elections
from replicator.replication.mastership.stall_detector import StallDetector
from replicator.replication.mastership.tenures import Tenure, Tenures
from replicator.runtime.signals import Signal
from replicator.store.db.queries import MailboxKey

CatchUp = Callable[[MailboxKey], Awaitable[None]]
Readiness = tuple[int, int]  # the term and the promises of the mailbox's scope when this node got ready to number it


class Mastership:
    """The masters of all scopes, and the mailboxes that this node may number. Belongs to the event loop.

    Implements `Keeper` for `handover`. `peers`: the configured ones, now and later. `catch_up` compares one mailbox
    with the other nodes and fetches what is missing.
    """

    def __init__(
        self,
        config: MastershipConfig,
        elections: Elections,
        *,
        peers: AbstractSet[str],
        pulse: StallDetector,
        catch_up: CatchUp,
    ) -> None:
        self.sid = elections.sid
        self.table = elections.table
        self._move_ended = Signal()
        self.tenures = Tenures()
        self.masters = KnownMasters(self.sid, move_ended=self._move_ended.notify, stepped=self.tenures.note)
        self._elections = elections
        self._policy = ScopePolicy(config.scope)
        self._peers = peers
        self._pulse = pulse
        self._catch_up = catch_up
        self._timeout_s = config.timeout_s
        # By mailbox id, since a scope may have many. Bounded by the mailboxes that this node has mastered in this term.
        self._ready: dict[bytes, Readiness] = {}
        self._shows_all: dict[bytes, Readiness] = {}  # during which this node has shown what all nodes showed
        self._readying: dict[bytes, trio.Event] = {}  # one for each comparison that runs
        self._met = trio.Event()  # set when this node has met its peers since it stood still
        self._met.set()
        self.is_retiring = False  # the node is about to stop

    # ---- events

    def term_began(self, term: int) -> None:
        """Forget all masters, and number nothing before this node has become a master anew."""
        self._ready.clear()
        self._shows_all.clear()
        self.tenures.forget_all()
        self.masters.begin(term)
        self.note_met()

    def went_on(self) -> None:
        """Handle that this node has stood still: it masters nothing until it has met its peers or had time for that."""
        self._met.set()
        self._met = trio.Event()
        self._elections.later(partial(self._wait_for_peers, self._met))
        self.note_met()

    def note_met(self) -> None:
        """Look if this node reaches all its peers, after nodes have come or gone."""
        if self._peers <= set(self.table.component):
            self._met.set()

    def retire(self) -> None:
        """Number nothing any more in this run, though other nodes still take this one for the master."""
        self.is_retiring = True

    def bounced(self, key: MailboxKey) -> None:
        """Note that the mailbox's supposed master denies being it or cannot be reached."""
        self.masters.bounced(self.scope(key))

    def doubt(self, key: MailboxKey) -> None:
        """Forget a master elsewhere, so that the root is asked again: another node knows, or believes, otherwise."""
        if self.masters.standing(self.scope(key)) is Standing.ELSEWHERE:
            self.bounced(key)

    def named(self, key: MailboxKey, master: str, asked_in: int) -> None:
        """Note that a reply names another master than the node that was asked: all or part of the scope may have moved.

        `asked_in` is the term of the question.
        """
        scope = self.scope(key)
        if self.masters.standing(scope) is Standing.ELSEWHERE and master != self.sid:
            self.masters.learn(scope, master, asked_in)

    # ---- questions

    def toward(self, sid: str) -> PeerLink | None:
        """Return the link by which a node is reached, if it can be."""
        return self._elections.toward(sid)

    def scope(self, key: MailboxKey) -> str:
        """Return the scope that contains the mailbox: all of it has one master."""
        return scope_of(self._policy, key.user, key.mailbox_id)

    def known_master(self, key: MailboxKey) -> str | None:
        """Return the mailbox's master, if this node knows it without asking."""
        return self.masters.master(self.scope(key))

    def tenure(self, key: MailboxKey) -> Tenure | None:
        """Return since when this node knows that the mailbox has its present master, as far as it remembers."""
        covering = self.masters.covering(self.scope(key))
        return None if covering is None else self.tenures.get(covering)

    def may_number(self, key: MailboxKey) -> bool:
        """Return True if this node may number the mailbox's changes at this moment."""
        return self.readiness(key) is not None

    def readiness(self, key: MailboxKey) -> Readiness | None:
        """Return a value that stays the same while this node alone may number the mailbox; None if it may not."""
        ready = self._ready.get(key.mailbox_id)
        return ready if ready == self._readiness_now(key) and self.is_ours(key) else None

    def shows_all(self, key: MailboxKey) -> bool:
        """Return True if nobody in reach can show anything of the mailbox that this node does not show.

        That is so once `note_shows_all` was called for the present readiness, since this node alone numbers meanwhile.
        A node that could not catch up in time, for instance because its disk failed, is ready without showing all.
        """
        ready = self.readiness(key)
        return ready is not None and self._shows_all.get(key.mailbox_id) == ready

    def note_shows_all(self, key: MailboxKey, ready: Readiness) -> None:
        """Note that this node, after it got `ready`, has shown all that any node in reach showed."""
        if self.readiness(key) == ready:
            self._shows_all[key.mailbox_id] = ready

    def is_ours(self, key: MailboxKey) -> bool:
        """Return True if this node masters the mailbox now, and may number: it has not stood still, nor retired.

        Any thread may call this.
        """
        return not self.is_retiring and not self._pulse.is_missing and self.masters.is_ours(self.scope(key))

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
            answer = await self._elections.ask(Who(term, scope, self.sid))
            if answer is not None and self.has_met:
                self.masters.learn(scope, answer.sid, term, answer.covering, moves)
                if self.masters.master(scope) is not None or self.masters.is_moving(scope):
                    continue
            await trio.sleep(timing.MASTERSHIP_RETRY_S)

    async def claim_new(self, key: MailboxKey) -> None:
        """Have this node named as the master of a mailbox that no node has yet: so there is nothing to catch up with.

        Waits as `find` does.
        """
        term = self.masters.term
        if await self.find(key) == self.sid:
            self.is_ready(key, term)

    async def root_names(self, key: MailboxKey) -> str | None:
        """Return the master that the root names, if this node remembers any; None otherwise, or without an answer.

        For display only, not to be learned: the root does not know yet what this node is giving away at this moment.
        """
        known = self.known_master(key)
        answer = None if known is None else await self._elections.ask(Who(self.masters.term, self.scope(key), known))
        return None if answer is None else answer.sid

    # ---- readiness to number

    @property
    def has_met(self) -> bool:
        """True if this node knows which nodes it can reach: it had time to meet its peers since it last stood still."""
        return self._met.is_set() and not self._pulse.is_missing

    async def meet(self) -> None:
        """Wait until `has_met`."""
        self._pulse.beat()
        while not self._met.is_set():
            await self._met.wait()

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

    def is_ready(self, key: MailboxKey, term: int) -> None:
        """Note that this node has, in that term, all that the previous master had of the mailbox."""
        if term == self.masters.term:
            self._ready[key.mailbox_id] = self._readiness_now(key)

    def _readiness_now(self, key: MailboxKey) -> Readiness:
        return self.masters.term, self.masters.promises(self.scope(key))

    async def _wait_for_peers(self, met: trio.Event) -> None:
        with trio.move_on_after(self._timeout_s):
            await met.wait()
        met.set()
