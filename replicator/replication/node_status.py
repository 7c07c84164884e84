"""The node's report about itself, for `status`, the JSON API, health and the metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import trio

from master_election.scopes import mailbox_of, user_of
from protocol.values import Dot, covers
from replicator.errors import DatabaseFailedError, MailError
from replicator.replication import timing
from replicator.replication.coordinator import Coordinator
from replicator.replication.links.rival_runs import PeerState
from replicator.replication.mastership.mastership import Mastership
from replicator.runtime.environment import Environment
from replicator.runtime.files.disk_room import DiskRoom
from replicator.status import CertificateStatus, LinkStatus, MailboxStatus, NodeStatus
from replicator.store.attachments.files import MissingError
from replicator.store.bodies.body_rows import lacking_count
from replicator.store.checkpoints import catalog
from replicator.store.db import queries, schema
from replicator.store.db.chain import Chain
from replicator.store.db.damage import REMEDY, DatabaseDamagedError
from replicator.store.db.queries import Connection, FolderRecord, Lag
from replicator.store.db.tally import Tally, count_all
from replicator.store.gc import expunged
from replicator.store.log.forks import stray_folder_count
from replicator.store.log.pending_resync import count as postponed_count
from replicator.store.store import Store
from resync import row as rows

MAILBOXES_BETWEEN_CHECKPOINTS = 100


@dataclass(frozen=True, slots=True)
class _Counts:
    """Figures from one read of the database."""

    log_end: int
    log_entries: int
    waiting: int
    stray_folders: int
    postponed: int
    texts_lacking: int
    expunged: tuple[int, int]
    mastered: int


@dataclass(frozen=True, slots=True)
class PeerLag:
    """The part of this node's log that a peer lacks. `has_until`: the position up to which it lacks nothing, if known.

    `is_heard`: by what the peer has reported since this node's start; otherwise by what it is known to have settled
    before, which is on disk here.
    """

    state: PeerState
    lag: Lag
    has_until: int | None
    is_heard: bool
    needs_sync: bool


class StatusReporter:
    """The report of this node, see `NodeReport`.

    `problems` returns further reasons why the node is unhealthy, `certificates` those that are in use, `disks`, which
    blocks, the file systems that the node writes to, `restart_for` the configuration's keys that need a restart, and
    `dovecots` what is wrong with the Dovecots that the node calls.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: Store,
        environment: Environment,
        *,
        problems: Callable[[], Sequence[str]] = tuple,
        certificates: Callable[[], Sequence[CertificateStatus]] = tuple,
        disks: Callable[[], tuple[DiskRoom, ...]] | None = None,
        restart_for: Callable[[], Sequence[str]] = tuple,
        dovecots: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._environment = environment
        self._problems = problems
        self.certificates = certificates
        self._disks = disks
        self._restart_for = restart_for
        self._dovecots = dovecots
        self.started_ms = environment.clock_ms()
        self._tried_at = -math.inf
        self._trying = trio.Lock()
        self._found_by_trial: str | None = None
        self.version = version("mail-replicator")  # reads a file

    async def node_status(self) -> NodeStatus:
        """See `NodeReport`."""
        coordinator, mastership = self._coordinator, self._coordinator.mastership
        counts = await self._store.read(partial(_counts, mastership=mastership, own=mastership.masters.own))
        shown = await self._shown()
        held = coordinator.bodies.attachments_held
        return NodeStatus(
            sid=coordinator.sid,
            origin=self._store.origin,
            cluster=coordinator.config.node.cluster,
            version=self.version,
            started_ms=self.started_ms,
            clock_ms=self._environment.clock_ms(),
            component=mastership.table.component,
            root=coordinator.elections.machine.root,
            term=coordinator.elections.machine.term,
            mailboxes=shown.mailboxes,
            mastered=counts.mastered,
            log_entries=counts.log_entries,
            log_keep_s=coordinator.config.log.keep_s,
            log_max_size_bytes=coordinator.config.log.max_size_bytes,
            checkpoint=coordinator.log_truncation.checkpoint_status(),
            transfer_done=coordinator.taken_over[0],
            transfer_total=coordinator.taken_over[1],
            postponed=counts.postponed,
            texts_lacking=counts.texts_lacking,
            expunged_messages=counts.expunged[0],
            expunged_bytes=counts.expunged[1],
            attachments=held.attachments if held else None,
            attachments_bytes=held.size_bytes if held else None,
            attachments_to_heal=coordinator.bodies.attachments_to_heal,
            waiting_entries=counts.waiting,
            stray_folders=counts.stray_folders,
            overdue=coordinator.overdue_entries.reasons,
            unsettled=coordinator.settled_logs.unsettled(),
            digest=rows.to_bytes(shown.digest).hex(),
            copies=coordinator.config.durability.copies,
            when_short=coordinator.config.durability.when_short.value,
            copies_reachable=coordinator.durability.reachable,
            not_serving=self.not_serving,
            no_room=await coordinator.disk_shortage.told(),
            links=await self._links(),
            certificates=tuple(self.certificates()),
            search_texts=coordinator.bodies.search_texts.status,
            edges=mastership.table.edges,
            disks=await self._disk_rooms(),
            restart_for=tuple(self._restart_for()),
            dovecots=tuple(self._dovecots()),
            log_end=counts.log_end,
        )

    async def _disk_rooms(self) -> tuple[DiskRoom, ...]:
        """Return the room on this node's disks; nothing if one of them, perhaps far away, does not answer."""
        if self._disks is None:
            return ()
        with trio.move_on_after(timing.NODE_STATUS_DISKS_S):
            return await self._environment.run_until_cancelled(self._disks)
        return ()

    @property
    def not_serving(self) -> tuple[str, ...]:
        """The reason why clients are refused, in words, if they are."""
        problem = self._coordinator.admission.problem() or self._coordinator.readiness.problem()
        return () if problem is None else (problem,)

    async def mailboxes(self, user: str | None) -> Sequence[MailboxStatus]:
        """See `NodeReport`. Deleted folders are not shown."""
        found = await self._store.read(lambda reader: _mailboxes(reader, user))
        mailboxes = []
        for number, (record, chain) in enumerate(found, 1):
            mailboxes.append(self._mailbox(record, chain))
            if number % MAILBOXES_BETWEEN_CHECKPOINTS == 0:
                await trio.lowlevel.checkpoint()
        return mailboxes

    async def has_unsaved(self) -> bool:
        """See `NodeReport`."""
        return bool(await self._store.read(partial(catalog.unsaved, after=b"")))

    async def healthy(self) -> Sequence[str]:
        """See `NodeReport`: the database answers and takes a change, and nothing else is wrong."""
        problems = [*self._problems(), *self.not_serving]
        problems += map(str, (await self._coordinator.disk_shortage.told())[:1])
        problems += filter(None, [await self.try_disk(timing.NODE_STATUS_TRY_EVERY_S)])
        if self._store.damage.found is not None:
            problems.append(f"the database is damaged: {self._store.damage.found}; {REMEDY}")
        return problems

    @property
    def was_healthy(self) -> bool:
        """True if `healthy` finds nothing, by the last trial of the disk."""
        is_damaged = self._store.damage.found is not None
        is_short = len(self._coordinator.disk_shortage) > 0
        return not (self._problems() or self.not_serving or is_short or self._found_by_trial or is_damaged)

    async def try_disk(self, every_s: float) -> str | None:
        """Return what the last trial of the disk has found. Whoever asks during one, or soon after, shares it.

        There is a new trial if the last one was `every_s` ago, or less if it failed.
        """
        async with self._trying:
            since_s = trio.current_time() - self._tried_at
            found = self._found_by_trial
            if since_s >= (timing.NODE_STATUS_RETRY_EVERY_S if found else every_s):
                self._found_by_trial = await self._try_disk()
                self._tried_at = trio.current_time()
            return self._found_by_trial

    async def _try_disk(self) -> str | None:
        """Read, write, and return what is wrong. Damage is reported by `healthy`, whoever has met it."""
        try:
            with trio.fail_after(timing.NODE_STATUS_WRITE_TIMEOUT_S):
                await self._store.read(queries.log_end)
                await self._store.write(lambda tx: schema.try_to_write(tx.connection))
                await self._environment.run_until_cancelled(self._store.attachments.try_to_write)
        except DatabaseDamagedError:
            return None
        except DatabaseFailedError as error:
            return f"the database does not answer: {error}"
        except (OSError, MissingError) as error:
            return f"large messages are refused because attachments cannot be written: {error}"
        except MailError as error:
            return f"changes are refused: {error}"
        except trio.TooSlowError:
            return f"the disk has not completed a write for {timing.NODE_STATUS_WRITE_TIMEOUT_S:.0f} s"
        return None

    async def run(self) -> None:
        """Count what this node shows, if that is not known and now and then anew, until cancelled.

        So no status has to wait for it; and a count that fails is repeated by whoever asks, who hears why not.
        """
        count_at = trio.current_time() + timing.NODE_STATUS_COUNT_FIRST_S
        while True:
            if self._store.tally is None or trio.current_time() >= count_at:
                with suppress(MailError):
                    await self._store.count(at_leisure=True)
                count_at = trio.current_time() + timing.NODE_STATUS_COUNT_ANEW_S
            await trio.sleep(timing.NODE_STATUS_LOOK_EVERY_S)

    async def _shown(self) -> Tally:
        """Return the sum of what this node shows, also while the writer hangs. Raises DatabaseFailedError."""
        while (tally := self._store.tally) is None:
            with trio.move_on_after(timing.NODE_STATUS_COUNT_S) as waiting:
                await self._store.count_slice()
            if waiting.cancelled_caught:
                async with self._store.reader() as reader:
                    return await reader.read(count_all)
        return tally

    def _mailbox(self, record: FolderRecord, chain: Chain) -> MailboxStatus:
        # A mailbox's own digest leaves out the folder's UIDVALIDITY.
        shown = rows.fingerprint((chain.digest(), record.uidvalidity))
        return MailboxStatus(
            user=chain.user,
            name=record.name,
            mailbox_id=chain.id.hex(),
            uidvalidity=record.uidvalidity,
            uidnext=chain.uidnext,
            highestmodseq=chain.highestmodseq,
            messages=chain.messages,
            unseen=chain.unseen,
            size_bytes=chain.size_bytes,
            head=_text(chain.head),
            digest=rows.to_bytes(shown).hex(),
            master=self._coordinator.mastership.known_master(record.key(chain.user)),
        )

    async def peer_lags(self) -> list[PeerLag]:
        """Return what each configured peer lacks of this node's log. Raises DatabaseFailedError."""
        states = list(self._coordinator.connections.peers.values())
        heard = [self._coordinator.feeds.context(state.config.id) for state in states]
        settled = self._coordinator.settled_logs.known()  # survives restarts: a peer may be away during one
        contexts = [
            settled[state.config.id] if context is None else context
            for state, context in zip(states, heard, strict=True)
        ]
        lags = await self._store.read(
            lambda reader: [(queries.lag(reader, context), queries.log_start(reader, context)) for context in contexts]
        )
        collected = self._store.collected
        return [
            PeerLag(state, lag, has_until, is_heard=said is not None, needs_sync=not covers(context, collected))
            for state, said, context, (lag, has_until) in zip(states, heard, contexts, lags, strict=True)
        ]

    async def _links(self) -> tuple[LinkStatus, ...]:
        return tuple(map(self._link, await self.peer_lags()))

    def _link(self, peer: PeerLag) -> LinkStatus:
        state, lag = peer.state, peer.lag if peer.is_heard else None
        return LinkStatus(
            peer=state.config.id,
            address=str(state.config.address),
            up=state.link is not None,
            since_ms=state.since_ms,
            round_trip_us=state.link.round_trip_us if state.link else None,
            lag_entries=None if lag is None else lag.entries,
            lag_bytes=None if lag is None else lag.size_bytes,
            lag_s=None if lag is None else self._age_s(lag),
            error=state.error,
            needs_sync=peer.needs_sync,
            has_until=peer.has_until if peer.is_heard else None,
        )

    def _age_s(self, lag: Lag) -> float | None:
        if lag.oldest_ms is None:
            return None if lag.entries else 0
        return max(0, self._environment.clock_ms() - lag.oldest_ms) / 1000


def _counts(reader: Connection, mastership: Mastership, own: AbstractSet[str]) -> _Counts:
    entries, waiting = queries.log_counts(reader)
    return _Counts(
        queries.log_end(reader),
        entries,
        waiting,
        stray_folder_count(reader),
        postponed_count(reader),
        lacking_count(reader),
        expunged.totals(reader),
        _mastered(reader, mastership, own),
    )


def _mastered(reader: Connection, mastership: Mastership, own: AbstractSet[str]) -> int:
    """Return the number of mailboxes in these scopes that this node masters; of other scopes it looks at nothing."""
    mailbox_ids = {mailbox_id for scope in own if (mailbox_id := mailbox_of(scope)) is not None}
    users = {user for scope in own if (user := user_of(scope)) is not None}
    is_of_one = len(mailbox_ids) + len(users) == len(own)  # else a scope has several users
    keys = queries.mailbox_keys(reader, mailbox_ids, users) if is_of_one else queries.all_mailbox_keys(reader)
    return sum(mastership.masters.is_ours(mastership.scope(key)) for key in set(keys))


def _mailboxes(reader: Connection, user: str | None) -> list[tuple[FolderRecord, Chain]]:
    """Return visible folders with their chains, by user and name; a folder that never held mail has an empty chain."""
    found = []
    for owner in [user] if user is not None else queries.users(reader):
        known = {chain.id: chain for chain in queries.chains_of(reader, owner)}
        for _, record in sorted(queries.folders(reader, owner).items()):
            chain = known.get(record.mailbox_id) or Chain(record.mailbox_id, owner, record.own)
            found.append((record, chain))
    return found


def _text(dot: Dot | None) -> str | None:
    return f"{dot.origin} {dot.seq}" if dot else None
