"""The node's report about itself, for `status`, the JSON API and the metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import trio
from prometheus_client import CollectorRegistry, Counter, Gauge, Info

from protocol.values import Dot, covers
from replicator.environment import Environment
from replicator.errors import DatabaseFailedError, MailError
from replicator.replication import timing
from replicator.replication.bodies import AttachmentTotals
from replicator.replication.coordinator import Coordinator
from replicator.replication.links.rival_runs import PeerState
from replicator.status import CheckpointStatus, LinkStatus, MailboxStatus, NodeStatus
from replicator.store.attachments.files import MissingError
from replicator.store.bodies.body_rows import lacking_count
from replicator.store.checkpoints import catalog
from replicator.store.db import queries, schema
from replicator.store.db.chain import Chain
from replicator.store.db.damage import REMEDY, DatabaseDamagedError
from replicator.store.db.queries import Connection, FolderRecord, Lag, MailboxKey
from replicator.store.db.transaction import Commit
from replicator.store.gc import expunged
from replicator.store.log.forks import stray_folder_count
from replicator.store.log.pending_resync import count as postponed_count
from replicator.store.store import Store
from resync import row as rows
from resync.entry import MailAdd


@dataclass(frozen=True, slots=True)
class _Counts:
    """Figures from one read of the database."""

    log_entries: int
    waiting: int
    stray_folders: int
    postponed: int
    texts_lacking: int
    expunged: tuple[int, int]
    mailboxes: list[MailboxKey]
    digest: int


class StatusReporter:
    """The report of this node, see `NodeReport`.

    `run` keeps the metrics in `registry` up to date; `problems` returns further reasons why the node is unhealthy.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: Store,
        environment: Environment,
        registry: CollectorRegistry,
        *,
        problems: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._environment = environment
        self._problems = problems
        self._started_ms = environment.clock_ms()
        self._metrics = _Metrics(registry, str(coordinator.config.node.data))
        self._tried_at = -math.inf
        self._trying = trio.Lock()
        self._version = version("mail-replicator")  # reads a file
        store.listeners.append(self._metrics.committed)

    async def node_status(self) -> NodeStatus:
        """See `NodeReport`."""
        counts = await self._store.read(_counts)
        coordinator, mastership = self._coordinator, self._coordinator.mastership
        held = coordinator.bodies.attachments_held
        return NodeStatus(
            sid=coordinator.sid,
            origin=self._store.origin,
            cluster=coordinator.config.node.cluster,
            version=self._version,
            started_ms=self._started_ms,
            clock_ms=self._environment.clock_ms(),
            component=mastership.table.component,
            root=coordinator.elections.machine.root,
            term=coordinator.elections.machine.term,
            mailboxes=len(counts.mailboxes),
            mastered=sum(mastership.known_master(key) == coordinator.sid for key in counts.mailboxes),
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
            digest=rows.to_bytes(counts.digest).hex(),
            copies=coordinator.config.durability.copies,
            when_short=coordinator.config.durability.when_short.value,
            copies_reachable=coordinator.durability.reachable,
            not_serving=self._not_serving(),
            no_room=await coordinator.disk_shortage.told(),
            links=await self._links(),
        )

    def _not_serving(self) -> tuple[str, ...]:
        """Return the reason why clients are refused, in words, if they are."""
        problem = self._coordinator.admission.problem() or self._coordinator.readiness.problem()
        return () if problem is None else (problem,)

    async def mailboxes(self, user: str | None) -> Sequence[MailboxStatus]:
        """See `NodeReport`. Deleted folders are not shown."""
        found = await self._store.read(lambda reader: _mailboxes(reader, user))
        return [self._mailbox(record, chain) for record, chain in found]

    async def has_unsaved(self) -> bool:
        """See `NodeReport`."""
        return bool(await self._store.read(partial(catalog.unsaved, after=b"")))

    async def healthy(self) -> Sequence[str]:
        """See `NodeReport`: the database answers and takes a change, and nothing else is wrong."""
        problems = [*self._problems(), *self._not_serving()]
        problems += map(str, (await self._coordinator.disk_shortage.told())[:1])
        try:
            await self._store.read(queries.log_end)
            async with self._trying:  # health checks may be concurrent
                if trio.current_time() > self._tried_at + timing.NODE_STATUS_TRY_EVERY_S:
                    await self._try_to_write()
        except DatabaseDamagedError:
            pass  # reported below, like damage that other code has met
        except DatabaseFailedError as error:
            problems.append(f"the database does not answer: {error}")
        except (OSError, MissingError) as error:
            problems.append(f"large messages are refused because attachments cannot be written: {error}")
        except MailError as error:
            problems.append(f"changes are refused: {error}")
        except trio.TooSlowError:
            problems.append(f"the disk has not completed a write for {timing.NODE_STATUS_WRITE_TIMEOUT_S:.0f} s")
        if self._store.damage.found is not None:
            problems.append(f"the database is damaged: {self._store.damage.found}; {REMEDY}")
        return problems

    async def _try_to_write(self) -> None:
        with trio.fail_after(timing.NODE_STATUS_WRITE_TIMEOUT_S):
            await self._store.write(lambda tx: schema.try_to_write(tx.connection))
            await self._environment.run_until_cancelled(self._store.attachments.try_to_write)
        self._tried_at = trio.current_time()

    async def run(self, interval_s: float) -> None:
        """Refresh the metrics until cancelled."""
        while True:
            with suppress(DatabaseFailedError):  # metrics keep their values; `healthy` says why
                entries, waiting = await self._store.read(queries.log_counts)
                postponed = await self._store.read(postponed_count)
                texts_lacking = await self._store.read(lacking_count)
                self._metrics.refresh_serving(
                    serving=not self._not_serving(), without_room=len(self._coordinator.disk_shortage)
                )
                self._metrics.refresh_expunged(*await self._store.read(expunged.totals))
                self._metrics.refresh_attachments(
                    self._coordinator.bodies.attachments_held, self._coordinator.bodies.attachments_to_heal
                )
                overdue = self._coordinator.overdue_entries
                self._metrics.refresh_overdue(
                    predecessor=overdue.entries(of_branches=False),
                    join=overdue.entries(of_branches=True),
                    doubts=overdue.doubts,
                )
                mastered = self._coordinator.mastership.masters.own_count
                copies = self._coordinator.durability.reachable
                self._metrics.refresh(
                    await self._links(),
                    waiting=waiting,
                    postponed=postponed,
                    texts_lacking=texts_lacking,
                    mastered=mastered,
                    copies=copies,
                    info=self._info(),
                )
                checkpoint = self._coordinator.log_truncation.checkpoint_status()
                self._metrics.refresh_log(entries, checkpoint, self._environment.clock_ms())
            await trio.sleep(interval_s)

    def _info(self) -> dict[str, str]:
        """Return the labels of `replicator_info`."""
        election = self._coordinator.elections.machine
        return {
            "sid": self._coordinator.sid,
            "cluster": self._coordinator.config.node.cluster,
            "version": self._version,
            "root": election.root or "",
            "term": str(election.term),
        }

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

    async def _links(self) -> tuple[LinkStatus, ...]:
        states = list(self._coordinator.connections.peers.values())
        contexts = [self._coordinator.feeds.context(state.config.id) for state in states]
        settled = self._coordinator.settled_logs.known()  # survives restarts: a peer may be away during one
        lags = await self._store.read(
            lambda reader: [None if context is None else queries.lag(reader, context) for context in contexts]
        )
        collected = self._store.collected
        return tuple(
            self._link(
                state,
                lag,
                needs_sync=not covers(settled[state.config.id] if context is None else context, collected),
            )
            for state, context, lag in zip(states, contexts, lags, strict=True)
        )

    def _link(self, state: PeerState, lag: Lag | None, *, needs_sync: bool) -> LinkStatus:
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
            needs_sync=needs_sync,
        )

    def _age_s(self, lag: Lag) -> float | None:
        if lag.oldest_ms is None:
            return None if lag.entries else 0
        return max(0, self._environment.clock_ms() - lag.oldest_ms) / 1000


class _Metrics:
    """The node's metrics. Names follow Prometheus: base units, counters end in `_total`."""

    def __init__(self, registry: CollectorRegistry, data: str) -> None:

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"replicator_{name}", text, labels, registry=registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"replicator_{name}", text, registry=registry)

        unknown = "NaN if this node has not heard from the peer since it started."
        lacking = "the log entries at this node that the peer has not confirmed to have on disk"
        self._up = gauge("link_up", "1 if the link to the peer is up, 0 if it is down.", "peer")
        self._entries = gauge("lag_entries", f"Number of {lacking}; {unknown}", "peer")
        self._bytes = gauge("lag_bytes", f"Size of {lacking}, with message bodies; {unknown}", "peer")
        self._seconds = gauge("lag_seconds", f"Age of the oldest of {lacking}; 0 if there are none, {unknown}", "peer")
        self._round_trip = gauge(
            "round_trip_seconds", "Round-trip time of the last heartbeat to the peer; 0 if there is none.", "peer"
        )
        self._waiting = gauge(
            "waiting_entries",
            "Log entries that are not applied yet: a predecessor is missing, or their branch has yet to be merged.",
        )
        self._overdue = gauge(
            "overdue_entries",
            "Log entries that have waited for more than 30 seconds with all nodes linked: for a missing"
            " predecessor, or for the merge of their branch.",
            "for",
        )
        self._doubts = gauge(
            "doubts", "How often this node has asked all peers again for what it lacks because of overdue entries."
        )
        self._abandoned = counter(
            "abandoned_entries_total",
            "Log entries abandoned because no node still has what they depend on: their mail was saved again, and"
            " their other changes are lost.",
        )
        self._needs_sync = gauge(
            "peer_needs_sync",
            "1 if the peer lacks entries that have left this node's log: it has to get them from another node, or"
            " by SYNC.",
            "peer",
        )
        self._postponed = gauge(
            "mailboxes_postponed", "Mailboxes and trees that a state transfer has left different from a peer's."
        )
        self._texts_lacking = gauge(
            "texts_lacking", "Bodies of messages shown here that this node has yet to fetch from other nodes."
        )
        self._expunged = gauge("expunged_kept_messages", "Expunged messages that are kept and can be restored.")
        self._expunged_bytes = gauge(
            "expunged_kept_bytes",
            "Size of the bodies of expunged messages that are kept; several messages may share a body.",
        )
        counted = "as counted by the last sweep or scrub; NaN until the first one, some minutes after the start."
        self._held = gauge("attachments", f"Attachments of this node's bodies, each counted once, {counted}")
        self._held_bytes = gauge("attachments_bytes", f"Size of the attachments of this node's bodies, {counted}")
        self._to_heal = gauge(
            "attachments_to_heal",
            "Attachments known to be damaged or missing, which this node fetches from other nodes.",
        )
        self._serving = gauge(
            "serving", "1 if this node serves clients, 0 while it turns them away: `status` says why."
        )
        self._data = data
        self._without_room = gauge(
            "entries_without_room",
            "Log entries of other nodes that wait because the disk of this directory has no room for them.",
            "directory",
        )
        self._copies = gauge("copies_reachable", "Nodes that can take changes to disk now, including this one.")
        self._joined = counter(
            "merges_total", "Merges of branches that this node has applied, its own and other nodes'."
        )
        self._mastered = gauge(
            "mailboxes_mastered",
            "Mailboxes and folder trees that this node is master of, or groups of them by `mastership.scope`.",
        )
        self._kept = gauge("log_kept_entries", "Entries in the log now.")
        self._kept_bytes = gauge(
            "log_kept_bytes", "Size of the entries in the log, without message bodies; `log.max_size` limits it."
        )
        self._checkpoint_age = gauge(
            "checkpoint_age_seconds", "Time since the last manifest of checkpoints was written; NaN if there is none."
        )
        self._pending = gauge(
            "checkpoint_waits_for_nodes",
            "Nodes that have yet to settle what the last checkpoints cover; the log before the checkpoints is kept"
            " for them.",
        )
        self._failing = gauge("checkpoints_failing", "1 while no checkpoints can be written, 0 otherwise.")
        self._info = Info("replicator", "The node, its version, its root and the root's term.", registry=registry)
        self._logged = counter("log_entries_total", "Entries written to the log, from this node and from others.")
        self._applied = counter("applied_entries_total", "Log entries that this node has applied and so shows.")
        self._messages = counter("messages_added_total", "Messages that appeared in a mailbox of this node.")
        self._commits = counter("commits_total", "Database transactions, each with one fsync.")

    def committed(self, commit: Commit) -> None:
        """Count a transaction that is on disk."""
        self._commits.inc()
        self._logged.inc(len(commit.logged))
        self._applied.inc(len(commit.applied))
        self._abandoned.inc(len(commit.abandoned))
        self._joined.inc(sum(entry.is_merge for entry in commit.applied))
        self._messages.inc(sum(isinstance(change, MailAdd) for entry in commit.applied for change in entry.changes))

    def refresh(
        self,
        links: Sequence[LinkStatus],
        *,
        waiting: int,
        postponed: int,
        texts_lacking: int,
        mastered: int,
        copies: int,
        info: dict[str, str],
    ) -> None:
        """Set the metrics of links, masters and waiting entries."""
        self._postponed.set(postponed)
        self._texts_lacking.set(texts_lacking)
        self._copies.set(copies)
        self._waiting.set(waiting)
        self._mastered.set(mastered)
        self._info.info(info)
        for link in links:
            self._up.labels(link.peer).set(link.up)
            self._needs_sync.labels(link.peer).set(link.needs_sync)
            self._entries.labels(link.peer).set(_or_nan(link.lag_entries))
            self._bytes.labels(link.peer).set(_or_nan(link.lag_bytes))
            self._seconds.labels(link.peer).set(_or_nan(link.lag_s))
            self._round_trip.labels(link.peer).set((link.round_trip_us or 0) / 1e6)

    def refresh_overdue(self, *, predecessor: int, join: int, doubts: int) -> None:
        """Set the metrics of overdue entries."""
        self._overdue.labels("predecessor").set(predecessor)
        self._overdue.labels("join").set(join)
        self._doubts.set(doubts)

    def refresh_serving(self, *, serving: bool, without_room: int) -> None:
        """Set the metrics of serving clients and of room on disk."""
        self._serving.set(serving)
        self._without_room.labels(self._data).set(without_room)

    def refresh_expunged(self, messages: int, size_bytes: int) -> None:
        """Set the metrics of kept expunged messages."""
        self._expunged.set(messages)
        self._expunged_bytes.set(size_bytes)

    def refresh_attachments(self, held: AttachmentTotals | None, to_heal: int) -> None:
        """Set the metrics of attachments, to the last counts."""
        self._held.set(_or_nan(held.attachments if held else None))
        self._held_bytes.set(_or_nan(held.size_bytes if held else None))
        self._to_heal.set(to_heal)

    def refresh_log(self, entries: int, checkpoint: CheckpointStatus, now_ms: int) -> None:
        """Set the metrics of the log and checkpoints."""
        made_ms = checkpoint.made_ms
        self._kept.set(entries)
        self._kept_bytes.set(checkpoint.log_bytes)
        self._checkpoint_age.set(_or_nan(None if made_ms is None else max(0, now_ms - made_ms) / 1000))
        self._pending.set(len(checkpoint.waits_for))
        self._failing.set(checkpoint.error is not None)


def _or_nan(value: float | None) -> float:
    """Return the value, or NaN, which Prometheus takes for unknown."""
    return math.nan if value is None else value


def _counts(reader: Connection) -> _Counts:
    entries, waiting = queries.log_counts(reader)
    digest = 0
    mailboxes = []
    for chain in queries.chains_of(reader, None):
        digest = rows.add(digest, int.from_bytes(chain.digest()))
        if chain.uidvalidity:
            mailboxes.append(MailboxKey(chain.user, chain.id, chain.uidvalidity))
    return _Counts(
        entries,
        waiting,
        stray_folder_count(reader),
        postponed_count(reader),
        lacking_count(reader),
        expunged.totals(reader),
        mailboxes,
        digest,
    )


def _mailboxes(reader: Connection, user: str | None) -> list[tuple[FolderRecord, Chain]]:
    """Return visible folders with their chains, by user and name; a folder that never held mail has an empty chain."""
    found = []
    for owner in [user] if user is not None else queries.users(reader):
        known = {chain.id: chain for chain in queries.chains_of(reader, owner)}
        for _, record in sorted(queries.folders(reader, owner).items()):
            chain = known.get(record.mailbox_id) or Chain(record.mailbox_id, owner, record.uidvalidity)
            found.append((record, chain))
    return found


def _text(dot: Dot | None) -> str | None:
    return f"{dot.origin} {dot.seq}" if dot else None
