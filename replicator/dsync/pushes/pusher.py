"""Tasks that sync users' mail with one Dovecot: of users whose mail has changed here soon, of all from time to time.

Changes that are made at the Dovecot are found by the rounds over all users, unless its own replicator brings them to
the door. What a sync brings here changes the user's mail, so another one follows, which finds nothing to do.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import trio

from replicator.config import DovecotConfig
from replicator.dsync.conversation.folder_sync import how_different
from replicator.dsync.conversation.master_session import MasterSession
from replicator.dsync.errors import DsyncError, PeerGoneError
from replicator.dsync.pushes.dovecot import Dovecot, DovecotRefusalError, DovecotUnreachableError
from replicator.dsync.pushes.gate import Gate
from replicator.dsync.pushes.neighbours import Neighbour
from replicator.dsync.pushes.schedule import GATHER_S, Look, Schedule
from replicator.dsync.replica import OpenReplica, Replica
from replicator.dsync.rules.selection import fits
from replicator.dsync.users import Syncing, Users, is_former
from replicator.errors import MailError
from replicator.mail.changed_users import ChangedUsers
from replicator.mail.last_changes import TreeChanges
from replicator.mail.mailstore import CoreMailStore
from replicator.runtime.logs.fields import LogFields
from replicator.runtime.metrics import DovecotMetrics

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Users with changes who are synced at once: each sync mostly waits for disks."""

PAGE = 1000
"""Users whose names are read at once."""

DUE_MOST = 100
"""Users whose turn it is, up to which a round over all users adds more: those with changes are not to wait for long."""

REPEATS_MOST = 3
SYNC_S = 7200.0
"""Seconds for one sync that goes on: for millions of mails. A Dovecot that falls silent ends it before (`IDLE_S`)."""

MARKS_MAX = 100_000
"""Users of whom it is remembered that nothing has changed since: 20 MB."""


@dataclass(frozen=True, slots=True)
class PushServices:
    """Services of the node for syncs that it begins. `hostname`: what this side is called in a sync."""

    mail: CoreMailStore
    users: Users
    replica_of: OpenReplica
    hostname: str
    syncing: Syncing
    metrics: DovecotMetrics = field(default_factory=DovecotMetrics)
    neighbours: Callable[[], Iterable[Neighbour]] = tuple


class Pusher:
    """The syncs with one Dovecot."""

    def __init__(self, config: DovecotConfig, dovecot: Dovecot, services: PushServices) -> None:
        self._config = config
        self._dovecot = dovecot
        self._services = services
        self._schedule = Schedule()
        self._marks: OrderedDict[str, bytes] = OrderedDict()
        self._repeats: dict[str, int] = {}  # how often in a row a sync of a user was to be repeated
        self._gate = Gate(str(config.address))
        services.metrics.follow(str(config.address), lambda: len(self._schedule), lambda: self._gate.why is None)

    def problems(self) -> Sequence[str]:
        """Return what an operator should know."""
        name, why = f"the Dovecot at {self._config.address}", self._gate.why
        rivals = [one.sid for one in self._services.neighbours() if one.calls(self._config)]
        told = [f"{name}: {sid} calls it for the same users: keep its [[dovecot]] at one node" for sid in rivals]
        return told if why is None else [f"{name}: {why}", *told]

    async def run(self) -> None:
        """Sync until cancelled. Safe to cancel: what was saved stays, and the next sync goes on from there."""
        changed = self._services.mail.watch_users()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, changed)
            nursery.start_soon(self._go_round)
            for _ in range(AT_ONCE):
                nursery.start_soon(self._sync_due)

    def _is_ours(self, user: str) -> bool:
        return any(fits(user, pattern) for pattern in self._config.users)

    async def _follow(self, changed: ChangedUsers) -> None:
        while True:
            for user in await changed.take():
                if self._is_ours(user):
                    self._schedule.changed(user, trio.current_time())

    async def _go_round(self) -> None:
        """Let all users be due, again and again, for a look at all mailboxes, or at all mails if that is due."""
        while True:
            began = trio.current_time()
            try:
                await self._owe_all()
            except MailError as error:
                log.warning("the users to be synced with the Dovecot at %s: %s", self._config.address, error)
            await trio.sleep_until(began + self._config.sync_every_s)

    async def _owe_all(self) -> None:
        last = ""
        while users := await self._services.mail.users_after(last, PAGE):
            for user in filter(self._is_ours, users):
                while self._schedule.due(trio.current_time()) >= DUE_MOST:
                    await self._schedule.shrunk.wait()
                self._schedule.owe(user, Look.EVERYWHERE, trio.current_time())
            last = users[-1]

    async def _sync_due(self) -> None:
        """Sync one user after another who is due."""
        while True:
            await self._gate.passed()
            taken = self._schedule.take(trio.current_time())
            if taken is not None:
                await self._sync(*taken)
                continue
            at = self._schedule.next_at()
            with trio.move_on_at(math.inf if at is None else at):
                await self._schedule.grown.wait()

    async def _sync(self, user: str, look: Look) -> None:
        """Sync a user, and note what is owed then."""
        with self._services.syncing.held(user) as is_free:
            if not is_free:
                self._schedule.owe(user, look, trio.current_time() + GATHER_S)
                return
            try:
                with trio.fail_after(SYNC_S):
                    await self._try(user, look)
            except DovecotUnreachableError as error:
                self._gate.close(str(error))
                self._schedule.owe(user, look, trio.current_time())
            except (DovecotRefusalError, MailError) as error:
                self._failed(user, look, error)
            except (PeerGoneError, DsyncError, trio.TooSlowError) as error:
                self._failed(user, Look.FULL, error)  # what was remembered may be wrong
            except Exception as error:  # a defect that one user's mail triggers is not to end the node, as at the door
                log.exception("a sync ended because of a defect in this program")
                self._failed(user, Look.FULL, Exception(f"a defect in this program: {error!r}"))

    def _failed(self, user: str, look: Look, error: Exception) -> None:
        if isinstance(error, DovecotRefusalError) and error.is_unknown:
            self._schedule.succeeded(user)
            self._tell("unknown", user, str(error))
            return
        self._schedule.failed(user, look, trio.current_time())
        self._tell("failed", user, str(error) or "it takes too long")

    async def _try(self, user: str, look: Look) -> None:
        """Sync a user whose mail is not as it was after the last sync, or without a look at that."""
        services = self._services
        if await is_former(services.users, user):
            self._schedule.succeeded(user)
            return  # the mail is kept for a while
        mark = _mark(await services.mail.tree_changes(user))
        if look is Look.CHANGED and self._marks.get(user) == mark:
            self._schedule.succeeded(user)
            return
        async with self._dovecot.begin_sync(user) as (peer, address), services.replica_of(user) as replica:
            self._gate.open()
            session = MasterSession(peer, replica, services.hostname, address)
            full = look is Look.FULL or (look is Look.EVERYWHERE and self._is_full_due(replica))
            await session.run(everywhere=look >= Look.EVERYWHERE, full=full)
            if full and not session.again:
                replica.note_full_sync(str(self._config.address))
        if session.again:
            self._repeat(user)
            return
        self._schedule.succeeded(user)
        self._repeats.pop(user, None)
        self._remember(user, mark)
        if session.different:
            self._tell("different", user, how_different(session.different))
        else:
            self._tell("done", user, None)

    def _is_full_due(self, replica: Replica) -> bool:
        return replica.full_sync_age_s(str(self._config.address)) >= self._config.full_sync_every_s

    def _repeat(self, user: str) -> None:
        """Let a user be synced again, as there was something in the way; later each time if that goes on."""
        repeats = self._repeats[user] = self._repeats.get(user, 0) + 1
        if repeats <= REPEATS_MOST:
            self._schedule.owe(user, Look.EVERYWHERE, trio.current_time() + GATHER_S)
        else:
            self._schedule.failed(user, Look.FULL, trio.current_time())
            self._tell("failed", user, f"{repeats} syncs in a row were to be repeated")

    def _remember(self, user: str, mark: bytes) -> None:
        self._marks[user] = mark
        self._marks.move_to_end(user)
        if len(self._marks) > MARKS_MAX:
            self._marks.popitem(last=False)

    def _tell(self, result: str, user: str, reason: str | None) -> None:
        """Count and log how a sync has ended."""
        self._services.metrics.ended(str(self._config.address), result)
        level = logging.INFO if result in {"done", "unknown"} else logging.WARNING
        fields = {"result": result, "user": user, "dovecot": str(self._config.address), "reason": reason}
        log.log(level, "sync %s", LogFields(fields))


def _mark(changes: TreeChanges) -> bytes:
    """Return a mark of all that a user's mail has been through here: with equal marks, nothing has changed."""
    heads = [(one.mailbox_id, one.head) for one in changes.folders]
    return sha256(repr((changes.head, sorted(heads))).encode()).digest()
