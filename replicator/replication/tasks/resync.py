"""`replicator resync`: compares mailboxes with other nodes on demand, and makes them equal (design section 7).

It does at once, with a report, what nodes do by themselves: the side that is behind adopts what the other one shows,
and the mailbox's master joins forks. Damage is only reported, since a merge cannot know what is right; the exceptions
are conflicting bodies, and rows that another node still shows undamaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

import trio

from protocol.commands import Done, Mismatch
from protocol.values import context_of, covers
from replicator.errors import MailError, UnavailableError
from replicator.replication import timing
from replicator.replication.convergence import diff, sync_client
from replicator.replication.convergence.body_conflicts import BodyConflicts
from replicator.replication.convergence.diff import LAST_RESORT, NodeComparison
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.links.link import LinkDownError
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.parallel import in_turns
from replicator.replication.tasks.pacing import ConvergenceWait, Pace
from replicator.replication.tasks.runner import TaskError
from replicator.replication.writes.head_exchange import ask
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.queries import Connection, MailboxKey
from replicator.store.log import pending_resync
from replicator.store.store import Store
from replicator.tasks import Difference, ResyncOptions, ResyncStatus
from resync.differing import DifferenceKind
from resync.entry import FolderState, tree_id
from resync.folder_tree import GIVEN_UP

AT_ONCE = 8  # mailboxes in parallel, which mostly wait for answers, with their differences in memory
DIFFERENCES_MAX = 10_000  # differences listed: 3 MiB of JSON
TRIES = 4  # comparisons of a mailbox that is too busy to be compared

_DONE = {Outcome.SAME: "equal by now", Outcome.ADOPTED: "adopted here", Outcome.AHEAD: "adopted there"}


class ResyncTask:
    """The job of `replicator resync`. See `Job`."""

    def __init__(
        self,
        options: ResyncOptions,
        *,
        store: Store,
        mastership: Mastership,
        reconciliation: Reconciliation,
        other_bodies: BodyConflicts,
        peers: Iterable[str],
    ) -> None:
        self.status = ResyncStatus(
            task="resync", rate=options.rate, user=options.user, mailbox=options.mailbox, dry_run=options.dry_run
        )
        self._user, self._mailbox, self._peer = options.user, options.mailbox, options.peer
        self._store = store
        self._mastership = mastership
        self._reconciliation = reconciliation
        self._body_conflicts = other_bodies
        self._configured = frozenset(peers)
        self._pace = Pace(options.rate)
        self._patience = ConvergenceWait()
        self._names: dict[bytes, str] = {}  # names of folders that only other nodes have
        self._is_anything_known = False

    async def run(self) -> None:
        """Resync with one node after the other. Raises TaskError, MailError."""
        self.status.peers = self._peers()
        for sid in self._unreached():
            self._note(Difference(sid, None, None, {}, None, f"{sid} cannot be reached"))
        for sid in self.status.peers:
            try:
                await (self._compare_user(self._user, sid) if self._user is not None else self._compare_all(sid))
            except LinkDownError:
                self._note(Difference(sid, None, None, {}, None, f"the link to {sid} went down"))
            except UnavailableError as error:
                self._note(Difference(sid, None, None, {}, None, str(error)))
        if self._user is None and self._peer is None and not (self.status.dry_run or self.status.unmended):
            await self._store.write(pending_resync.forget_all)  # no other node could know more
        if self._user is not None and not self._is_anything_known and not self.status.unmended:
            what = f"user {self._user!r}" if self._mailbox is None else f"folder {self._mailbox!r} of {self._user}"
            raise TaskError(f"there is no {what} here or at {', '.join(self.status.peers)}")

    def _peers(self) -> list[str]:
        """Return the SIDs of the nodes to compare with. Raises TaskError."""
        others = sorted(sid for sid in self._mastership.table.component if sid != self._mastership.sid)
        if self._peer is None and others:
            return others
        if self._peer is not None and self._peer in others:
            return [self._peer]
        here = f"from {self._mastership.sid}; `replicator status` shows its links"
        if self._peer is None or not others:
            raise TaskError(f"no other node can be reached {here}")
        raise TaskError(f"{self._peer} cannot be reached, only {', '.join(others)}, {here}")

    def _unreached(self) -> list[str]:
        """Return the configured nodes that cannot be compared."""
        return sorted(self._configured - {*self.status.peers}) if self._peer is None else []

    async def _compare_all(self, sid: str) -> None:
        async with sync_client.node_difference(self._store, self._mastership, sid) as difference:
            keys = await difference.all_keys()
        self.status.total += len(keys)
        await self._resync_all([key for key in keys if not key.uidvalidity], sid)  # trees first: they name the folders
        await self._resync_all([key for key in keys if key.uidvalidity], sid)

    async def _compare_user(self, user: str, sid: str) -> None:
        """Resync the user's tree, then the mailboxes that it names."""
        self.status.total += 1
        tree = await self._resync(MailboxKey(user, tree_id(user), 0), sid)
        keys = await self._store.read(partial(_mailboxes, user=user, name=self._mailbox))
        for folder in tree.folders if tree else ():
            if not folder.deleted and self._mailbox in {None, folder.name}:
                keys.setdefault(folder.mailbox_id, MailboxKey(user, folder.mailbox_id, folder.uidvalidity))
        self.status.total += len(keys)
        self._is_anything_known |= bool(keys)
        await self._resync_all(keys.values(), sid)

    async def _resync_all(self, keys: Iterable[MailboxKey], sid: str) -> None:
        """Resync several mailboxes in parallel.

        Stops at the first LinkDownError or MailError, and raises it.
        """
        await in_turns(partial(self._resync, sid=sid), keys, AT_ONCE)

    async def _resync(self, key: MailboxKey, sid: str) -> NodeComparison | None:
        """Compare and repair one mailbox. A failure is reported, or raised if the node cannot be reached any more."""
        look: NodeComparison | None = None
        try:
            look, done, why_not = await self._compare(key, sid)
        except MailError as error:
            if self._mastership.toward(sid) is None:
                raise
            done, why_not = None, str(error)
        if look is None or look.by_kind:
            differed = {str(kind): count for kind, count in look.by_kind.items()} if look else {}
            self._note(Difference(sid, key.user, await self._name(key), differed, done, why_not))
        self.status.count(1)
        return look

    async def _compare(self, key: MailboxKey, sid: str) -> tuple[NodeComparison, str | None, str | None]:
        """Return the differences, and the result of `_mend`. Retries a mailbox that is busy.

        Raises MailError, LinkDownError.
        """
        for _ in range(TRIES - 1):
            try:
                return await self._compare_once(key, sid)
            except UnavailableError:
                if self._mastership.toward(sid) is None:
                    raise
            await trio.sleep(timing.RESYNC_BUSY_EVERY_S)
        return await self._compare_once(key, sid)

    async def _compare_once(self, key: MailboxKey, sid: str) -> tuple[NodeComparison, str | None, str | None]:
        look = await self._look(key, sid)
        if not look.other_bodies or self.status.dry_run:
            return look, *(await self._mend(key, sid, look) if look.by_kind else (None, None))
        done = await self._put_bodies_right(key)
        left = await self._look(key, sid)
        if left.other_bodies:
            still = f"the nodes still have different bodies for {left.other_bodies} messages"
            return (
                look,
                None,
                f"{still}: the right bodies are unavailable now, or a node could not be asked; see their logs",
            )
        also, why_not = await self._mend(key, sid, left) if left.by_kind else (None, None)
        return look, None if why_not else "; ".join(filter(None, (done, also))), why_not

    async def _look(self, key: MailboxKey, sid: str) -> NodeComparison:
        look = await diff.standing(self._store, self._mastership, sid, key)
        self._names |= {folder.mailbox_id: folder.name for folder in look.folders}
        self.status.rows += look.rows
        await self._pace.rest(look.rows)
        return look

    async def _put_bodies_right(self, key: MailboxKey) -> str:
        """Correct conflicting bodies at all reachable nodes, as far as possible; return a summary. Raises MailError."""
        count = await self._body_conflicts.put_right(key)
        for sid in sorted(set(self._mastership.table.component) - {self._mastership.sid}):
            await self._body_conflicts.put_right_at(key, sid)
        return f"{count} bodies corrected here, and those of other nodes there"

    async def _mend(self, key: MailboxKey, sid: str, look: NodeComparison) -> tuple[str | None, str | None]:
        """Return what was done, or why nothing was; both are None in a dry run without damage.

        Raises MailError, LinkDownError.
        """
        if self.status.dry_run or (look.damage and not look.can_restore):
            return None, look.damage
        if look.can_restore:
            is_restored = await self._reconciliation.restore(key, sid) is Outcome.ADOPTED
            return ("restored here", None) if is_restored else (None, look.damage)
        with trio.move_on_after(timing.RESYNC_MEND_TIMEOUT_S):
            outcome = await self._reconciliation.reconcile(key, sid)
            match outcome:
                case Outcome.APART:
                    return None, "its branches cannot be merged; the log of its master says why"
                case Outcome.DAMAGED:
                    return None, f"it is damaged; run `replicator check --repair` here and at {sid}, {LAST_RESORT}"
            done = _DONE.get(outcome) or f"merged by {self._mastership.known_master(key) or 'its master'}"
            if outcome in {Outcome.SAME, Outcome.ADOPTED} or await self._is_shown(key, sid, look):
                return done, None
            return (
                None,
                f"not {done} within {timing.PACING_SHOW_TIMEOUT_S:.0f} s; `replicator status` shows what {sid} lacks",
            )
        within = f"within {timing.RESYNC_MEND_TIMEOUT_S:.0f} s"
        return None, f"not completed {within}; `replicator status` shows whether masters are known"

    async def _is_shown(self, key: MailboxKey, sid: str, look: NodeComparison) -> bool:
        """Wait until each node has seen what the other one showed, and one head has one digest.

        Returns False on a timeout.
        """

        async def late() -> tuple[str, ...]:
            return () if await self._have_both_seen(key, sid, look) else (sid,)

        return not await self._patience.wait((sid,), late)

    async def _have_both_seen(self, key: MailboxKey, sid: str, look: NodeComparison) -> bool:
        mine = await self._store.read(partial(chains.load, chain_id=key.mailbox_id)) or look.ours
        reply = await ask(self._mastership.toward(sid), sid, key, mine)
        if isinstance(reply, Mismatch) and reply.head == mine.head:
            return False
        theirs = mine.context if isinstance(reply, Done) else {}
        if isinstance(reply, Mismatch):
            theirs = context_of(reply.context)
        return covers(theirs, look.ours.context) and covers(mine.context, look.theirs.context)

    async def _name(self, key: MailboxKey) -> str | None:
        if key.uidvalidity == 0:
            return None
        name = await self._store.read(partial(queries.folder_name, mailbox_id=key.mailbox_id))
        return name or self._names.get(key.mailbox_id) or key.mailbox_id.hex()

    def _note(self, difference: Difference) -> None:
        status = self.status
        total = Counter(status.differed) + Counter(difference.differed)
        status.differed = {str(kind): total[kind] for kind in DifferenceKind if total[kind]}
        status.mended += difference.done is not None
        status.unmended += difference.done is None
        if len(status.differences) < DIFFERENCES_MAX:
            status.differences.append(difference)
        else:
            status.left_out += 1


def _mailboxes(connection: Connection, user: str, name: str | None) -> dict[bytes, MailboxKey]:
    """Return the user's mailboxes that this node knows, also of deleted folders.

    With a name, return only those of visible folders of that name.
    """
    if name is not None:
        folders = queries.folders_in_sight(connection, user)
        return {folder.mailbox_id: folder.key(user) for folder in folders if folder.name == name}
    keys = {
        folder.mailbox_id: MailboxKey(user, folder.mailbox_id, folder.uidvalidity)
        for folder in queries.tree_rows(connection, user)
        if isinstance(folder, FolderState) and folder.sid != GIVEN_UP
    }
    chains_here = queries.chains_of(connection, user)
    return {
        chain.id: MailboxKey(user, chain.id, chain.uidvalidity) for chain in chains_here if chain.uidvalidity
    } | keys
