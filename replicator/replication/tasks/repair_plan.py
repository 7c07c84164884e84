"""`replicator apply`: makes the mailboxes of a repair plan equal, by the nodes' own rules (design section 7).

A plan contains no rows, and only its ids and heads are trusted: this node itself knows each mailbox's owner. A mailbox
is touched only if all nodes of the plan still show the heads that were compared. This node then compares it with each
of them, adopts what it lacks, and has the mailbox's master join what has forked, as a resync does. The mailbox counts
as repaired once all nodes show one head with one digest. Nodes are asked what they show by an MBOX with an empty head,
which has no side effects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import trio

from protocol.commands import Done, Mismatch, Reply
from protocol.values import Dot
from replicator.errors import DatabaseFailedError, MailError
from replicator.replication import timing
from replicator.replication.convergence import diff, sync_client
from replicator.replication.convergence.body_conflicts import BodyConflicts
from replicator.replication.convergence.fork_merge import chain_of
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.links.link import LinkDownError
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.parallel import in_turns
from replicator.replication.tasks.pacing import ConvergenceWait, Pace
from replicator.replication.tasks.runner import TaskError
from replicator.replication.writes.head_exchange import ask
from replicator.store.bodies.body_rows import lacking_count
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.db.queries import MailboxKey
from replicator.store.store import Store
from replicator.tasks import ApplyOptions, ApplyOutcome, ApplyStatus, PlannedMailbox, Undone

AT_ONCE = 32  # mailboxes in parallel, which mostly wait for answers
RECONCILED_AT_ONCE = 8  # of those, mailboxes being reconciled, with their differences in memory

_CHECK = "run `replicator check --repair`"
_STUCK: Mapping[Outcome, tuple[ApplyOutcome, str]] = {
    Outcome.APART: ("failed", "its branches cannot be merged; the log of its master says why"),
    Outcome.DAMAGED: ("damaged", f"it is damaged here or at {{sid}}; {_CHECK} at both"),
}


class _LeftError(Exception):
    """The outcome and reason for a mailbox that is not made equal."""

    def __init__(self, outcome: ApplyOutcome, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome


class RepairPlanTask:
    """The job of `replicator apply`. See `Job`."""

    def __init__(
        self,
        options: ApplyOptions,
        *,
        store: Store,
        mastership: Mastership,
        reconciliation: Reconciliation,
        other_bodies: BodyConflicts,
    ) -> None:
        self.status = ApplyStatus(task="apply", rate=options.rate, dry_run=options.dry_run)
        self._planned, self._waits_for_bodies = options.mailboxes, options.texts
        self._store = store
        self._mastership = mastership
        self._reconciliation = reconciliation
        self._body_conflicts = other_bodies
        self._reconciling = trio.Semaphore(RECONCILED_AT_ONCE)
        self._pace = Pace(options.rate)
        self._patience = ConvergenceWait()

    async def run(self) -> None:
        """Apply the plan, trees before mailboxes, since trees name the folders. Raises TaskError, MailError."""
        own = self._mastership.sid
        for planned in self._planned:
            if own not in planned.heads:
                of = ", ".join(sorted(planned.heads))
                raise TaskError(f"the plan is not for this node, {own}, but for {of}; apply it at one of those")
        self.status.total = len(self._planned)
        await in_turns(self._apply, [planned for planned in self._planned if not planned.uidvalidity], AT_ONCE)
        await in_turns(self._apply, [planned for planned in self._planned if planned.uidvalidity], AT_ONCE)
        if self._waits_for_bodies:
            await self._wait_for_bodies()

    async def _apply(self, planned: PlannedMailbox) -> None:
        await self._pace.rest(1)
        outcome: ApplyOutcome
        try:
            outcome = await self._outcome(planned)
        except _LeftError as left:
            outcome = left.outcome
            folder = await self._folder(planned)
            self.status.undone.append(Undone(planned.user, folder, planned.mailbox, outcome, str(left)))
        self.status.outcomes[outcome] = self.status.outcomes.get(outcome, 0) + 1
        self.status.count(1)

    async def _outcome(self, planned: PlannedMailbox) -> ApplyOutcome:
        """Return `equal` or `repaired`. Raises _LeftError."""
        others = sorted(planned.heads.keys() - {self._mastership.sid})
        try:
            key = await self._key(planned)
            if planned.damaged and key is not None and await self._have_right_bodies(key, others):
                return "repaired"
            if planned.damaged:
                why = f"the plan says that it is damaged; {_CHECK} at its nodes, and make a new plan"
                raise _LeftError("damaged", why)
            if await self._is_equal(key or _told(planned), planned.heads, others):
                return "equal"
            if not self.status.dry_run:
                await self._repair(_require_known(key, planned), others)
        except sync_client.DamagedError as error:
            raise _LeftError("damaged", f"{error}; {_CHECK} at its nodes") from error
        except DatabaseDamagedError as error:  # the error names the remedy: a check, or only a new database
            raise _LeftError("damaged", str(error)) from error
        except LinkDownError:
            raise _LeftError("unreachable", "a link went down meanwhile") from None
        except MailError as error:
            self._require_ways(others)
            raise _LeftError("failed", str(error)) from error
        except trio.TooSlowError:
            raise _LeftError("failed", f"not completed within {timing.REPAIR_PLAN_MAILBOX_TIMEOUT_S:.0f} s") from None
        return "repaired"

    # ---- what the nodes show

    async def _key(self, planned: PlannedMailbox) -> MailboxKey | None:
        """Return the mailbox's key at this node; None: this node does not know its owner.

        Raises _LeftError if the plan names another owner.
        """
        told = _told(planned)
        known = await self._store.read(partial(queries.key_of, mailbox_id=told.mailbox_id))
        if known is None:
            return None if told.uidvalidity else told  # a tree's id follows from its user
        if (known.user, known.uidvalidity == 0) != (told.user, told.uidvalidity == 0):
            raise _LeftError(
                "failed", f"the plan names another user, but here the owner is {known.user}; make a new plan"
            )
        return known

    async def _is_equal(self, key: MailboxKey, compared: Mapping[str, Dot | None], others: Collection[str]) -> bool:
        """Return True if all nodes show the same by now.

        Raises _LeftError unless they do, or still show what was compared.
        """
        mine = await chain_of(self._store, key)
        replies = await self._ask(key, others, queries.empty_chain(key))
        heads = {sid: reply.head if isinstance(reply, Mismatch) else None for sid, reply in replies.items()}
        heads[self._mastership.sid] = mine.head
        if any(compared.values()) and not any(heads.values()):
            raise _LeftError(
                "failed", "no node of the plan knows the mailbox: is the plan of other data? make a new plan"
            )
        if len(set(heads.values())) == 1:
            differing = [one for one in (await self._ask(key, others, mine)).values() if isinstance(one, Mismatch)]
            if not differing:
                return True
            if not any("head" in reply.fields for reply in differing):
                raise _LeftError("damaged", f"nodes show different content at the same head; {_CHECK} at all of them")
        moved = sorted(sid for sid, head in compared.items() if heads[sid] != head)
        if moved:
            raise _LeftError("moved", f"changed since it was compared, at {', '.join(moved)}")
        return False

    async def _ask(self, key: MailboxKey, others: Collection[str], mine: Chain) -> dict[str, Reply]:
        """Ask all nodes in parallel. Raises _LeftError if one does not answer."""
        replies: dict[str, Reply] = {}

        async def ask_one(sid: str) -> None:
            reply = await ask(self._mastership.toward(sid), sid, key, mine)
            if isinstance(reply, Done | Mismatch):
                replies[sid] = reply

        with trio.move_on_after(timing.REPAIR_PLAN_ASK_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                for sid in others:
                    nursery.start_soon(ask_one, sid)
        self._require_ways(others)
        if silent := sorted(set(others) - replies.keys()):
            raise _LeftError("unreachable", f"{', '.join(silent)} did not answer")
        return replies

    def _require_ways(self, others: Collection[str]) -> None:
        """Raise _LeftError if one of these nodes cannot be reached."""
        if unreached := sorted(set(others) - set(self._mastership.table.component)):
            raise _LeftError("unreachable", f"{', '.join(unreached)} cannot be reached from here")

    # ---- making it equal

    async def _have_right_bodies(self, key: MailboxKey, others: Collection[str]) -> bool:
        """Correct conflicting bodies under one GUID; return True if they were the only difference. Not in a dry run."""
        if self.status.dry_run or not key.uidvalidity:
            return False
        mine = await chain_of(self._store, key)
        differing = [one for one in (await self._ask(key, others, mine)).values() if isinstance(one, Mismatch)]
        if not differing or any("head" in reply.fields for reply in differing):
            return False
        await self._body_conflicts.put_right(key)
        for sid in others:
            await self._body_conflicts.put_right_at(key, sid)
        mine = await chain_of(self._store, key)
        return all(isinstance(one, Done) for one in (await self._ask(key, others, mine)).values())

    async def _repair(self, key: MailboxKey, others: Collection[str]) -> None:
        """Reconcile until all nodes show one head and one digest.

        Raises _LeftError, and the errors of `Reconciliation.reconcile`.
        """
        await self._reconcile(key, others)
        late = await self._patience.wait(others, partial(self._late, key, others))
        if late:
            await self._require_undamaged(key, late)
            names = ", ".join(late)
            raise _LeftError(
                "failed",
                f"{names} and this node did not become equal within {timing.PACING_SHOW_TIMEOUT_S:.0f} s; see"
                f" `replicator status`, and if this lasts, apply a new plan at {names}",
            )

    async def _require_undamaged(self, key: MailboxKey, late: Collection[str]) -> None:
        """Raise _LeftError if the mailbox is damaged at a late node or its master.

        A master whose rows do not match its head's counts joins nothing and reports that only in its log.
        """
        master = self._mastership.known_master(key)
        for sid in sorted({*late, master or ""} - {self._mastership.sid, ""}):
            async with self._reconciling:
                with trio.fail_after(timing.REPAIR_PLAN_MAILBOX_TIMEOUT_S):
                    damage = (await diff.look(self._store, self._mastership, sid, key)).damage
            if damage is not None:
                raise _LeftError("damaged", damage)

    async def _late(self, key: MailboxKey, others: Collection[str]) -> list[str]:
        """Return the nodes that show something else than this node now, after comparing with them once more."""
        replies = await self._ask(key, others, await chain_of(self._store, key))
        late = sorted(sid for sid, reply in replies.items() if isinstance(reply, Mismatch))
        await self._reconcile(key, late)
        return late

    async def _reconcile(self, key: MailboxKey, others: Collection[str]) -> None:
        for sid in others:
            async with self._reconciling:
                with trio.fail_after(timing.REPAIR_PLAN_MAILBOX_TIMEOUT_S):
                    outcome = await self._reconciliation.reconcile(key, sid)
            if outcome in _STUCK:
                kind, why = _STUCK[outcome]
                raise _LeftError(kind, why.format(sid=sid))

    # ---- the report

    async def _folder(self, planned: PlannedMailbox) -> str | None:
        if planned.uidvalidity == 0:
            return None
        try:
            name = await self._store.read(partial(queries.folder_name, mailbox_id=bytes.fromhex(planned.mailbox)))
        except DatabaseFailedError:
            name = None
        return name or planned.mailbox

    async def _wait_for_bodies(self) -> None:
        """Wait for missing bodies while some arrive; others may be at no reachable node."""
        self.status.texts_lacking = lacking = await self._store.read(lacking_count)
        deadline = trio.current_time() + timing.REPAIR_PLAN_BODIES_TIMEOUT_S
        while lacking and trio.current_time() < deadline:
            await trio.sleep(timing.REPAIR_PLAN_BODIES_EVERY_S)
            self.status.texts_lacking = now = await self._store.read(lacking_count)
            if now < lacking:
                lacking, deadline = now, trio.current_time() + timing.REPAIR_PLAN_BODIES_TIMEOUT_S


def _told(planned: PlannedMailbox) -> MailboxKey:
    """Return the key as in the plan; safe for questions under an empty head, which have no side effects."""
    return MailboxKey(planned.user, bytes.fromhex(planned.mailbox), planned.uidvalidity)


def _require_known(key: MailboxKey | None, planned: PlannedMailbox) -> MailboxKey:
    """Return the key. Raises _LeftError if it is None."""
    if key is None:
        why = f"the folder tree of {planned.user} at this node lacks the mailbox; make the trees equal first"
        raise _LeftError("failed", why)
    return key
