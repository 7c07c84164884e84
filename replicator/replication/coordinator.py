"""The node among its peers: sets up the parts of replication, and dispatches the commands that come in over links.

Clients' changes go to `writes.router`, requests of peers to `peer_requests`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial

import trio

from protocol.commands import (
    Ack,
    Command,
    Dropped,
    Entries,
    EntryCommand,
    Hello,
    Links,
    Log,
    Ping,
    Remote,
    Reply,
    Root,
    Settled,
)
from protocol.stream_codec import ProtocolError
from protocol.values import Context, Dot
from replicator.config import Config
from replicator.replication import timing
from replicator.replication.bodies import Bodies
from replicator.replication.checkpoints.bootstrap import Bootstrap
from replicator.replication.checkpoints.checkpoint_reader import CheckpointSource, LogAlone
from replicator.replication.checkpoints.log_truncation import LogTruncation, NoLogTruncation
from replicator.replication.convergence.abandoned_entries import AbandonedEntries
from replicator.replication.convergence.anti_entropy import AntiEntropy
from replicator.replication.convergence.body_conflicts import BodyConflicts
from replicator.replication.convergence.fork_merge import ForkMerger
from replicator.replication.convergence.fork_scheduler import ForkScheduler
from replicator.replication.convergence.overdue_entries import OverdueEntries
from replicator.replication.convergence.reconciliation import Reconciliation
from replicator.replication.convergence.state_transfer import StateTransfer
from replicator.replication.links.connections import Connections, Dial
from replicator.replication.links.handshake import Certify
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.links.object_entries import RemoteEntries
from replicator.replication.links.rival_runs import HOW_TO_PART
from replicator.replication.log import entry_lines
from replicator.replication.log.acknowledgements import Acknowledgements
from replicator.replication.log.disk_shortage import DiskShortage
from replicator.replication.log.feeds import Feed, Feeds
from replicator.replication.log.settled import SettledLogs
from replicator.replication.mastership.elections import Elections
from replicator.replication.mastership.handover import Handover
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.mastership.reach import Reach
from replicator.replication.mastership.stall_detector import StallDetector
from replicator.replication.peer_requests import PeerRequests
from replicator.replication.startup.mailbox_readiness import Readiness
from replicator.replication.startup.node_admission import Admission
from replicator.replication.writes.durability import Durability
from replicator.replication.writes.lagging_peers import LaggingPeers
from replicator.replication.writes.prestage import Prestage
from replicator.replication.writes.read_your_writes import ReadYourWrites
from replicator.replication.writes.requests import ChangeRequest
from replicator.replication.writes.router import Router
from replicator.runtime.environment import Environment
from replicator.runtime.metrics import RefusalMetrics, ReplicationMetrics
from replicator.store.checkpoints.archive import Archive
from replicator.store.db.queries import MailboxKey
from replicator.store.store import Store
from resync.folder_tree import share_of

log = logging.getLogger(__name__)


class Coordinator:
    """The parts of replication, put together. Belongs to the event loop; owns the links and all that runs on them."""

    def __init__(
        self,
        config: Config,
        store: Store,
        environment: Environment,
        dial: Dial,
        certify: Certify = lambda _: None,
        *,
        archive: Archive | None = None,
        capabilities: tuple[str, ...] = (),
        metrics: ReplicationMetrics | None = None,
        refusals: RefusalMetrics | None = None,
        is_new: bool = False,
    ) -> None:
        """Create all parts. `is_new` is True if the node with this database has not begun, see `Admission`."""
        self.config = config
        self.store = store
        self.sid = config.node.id
        store.listeners.append(partial(entry_lines.tell, own=store.origin))
        self._metrics = metrics = metrics or ReplicationMetrics()
        self.connections = Connections(
            config,
            store.origin,
            environment,
            owner=self,
            dial=dial,
            certify=certify,
            capabilities=lambda: (*capabilities, *self.admission.capabilities),
            run_of=self._run_of,
            refusals=refusals,
        )
        store.take_share(share_of(self.sid, self.connections.peers))
        self.admission = Admission(
            store,
            lambda: self.connections.peers,
            self.connections.hello,
            self._ask_again,
            is_new=is_new,
            patience_s=config.mastership.timeout_s,
        )
        self._stall_detector = StallDetector(
            # A peer may have received the last sign of life one heartbeat before this node stood still.
            config.mastership.timeout_s - config.mastership.heartbeat_s,
            suspended_s=environment.suspended_s,
            went_on=self._went_on,
        )
        peers = self.connections.peers.keys()  # always those of the present configuration, see `reconfigure`
        self.elections = Elections(
            config,
            store,
            clock_ms=environment.clock_ms,
            peers=peers,
            link_to=self.connections.link,
            term_began=self._term_began,
            routes_changed=self._routes_changed,
            outlived=self._outlived,
        )
        self.reach = Reach(
            self.elections.table,
            peers=peers,
            links=lambda: self.connections.links,
            removed=config.node.removed,
            admitted=self.admission.met,
        )
        self.lagging_peers = LaggingPeers(self.elections.owed, config.mastership.timeout_s, timing.STALLED_S)
        self.durability = Durability(config.durability, self.reach.copy_holders, self.lagging_peers)
        self.mastership = Mastership(
            config.mastership, self.elections, peers=peers, pulse=self._stall_detector, catch_up=self._catch_up
        )
        self.settled_logs = SettledLogs(
            store,
            self.mastership.table,
            clock_ms=environment.clock_ms,
            peers=peers,
            links=lambda: self.connections.links,
        )
        self.handover = Handover(
            store,
            self.elections,
            self.mastership,
            peers=peers,
            timeout_s=config.mastership.timeout_s,
            metrics=metrics.mastership,
        )
        self.bodies = Bodies(
            store,
            environment,
            config.content,
            lambda: self.connections.links,
            metrics.attachments,
        )
        self.prestage = Prestage(store, self.bodies, self._links_kept_up_with, config.durability.copies - 1)
        self.checkpoints = CheckpointSource(store, archive, environment.run_in_thread) if archive else LogAlone()
        self.fork_merger = ForkMerger(store, self.mastership, self.checkpoints, config.conflict.uid)
        self.body_conflicts = BodyConflicts(store, self.mastership, self.bodies, self.fork_merger)
        self.reconciliation = Reconciliation(store, self.mastership, self.fork_merger)
        self.anti_entropy = AntiEntropy(
            store,
            self.mastership,
            self.reconciliation,
            lambda: self.connections.links,
            is_taking_over=lambda: self.state_transfer.is_running,
        )
        self.readiness = Readiness(
            store,
            self.admission,
            self.mastership,
            self.reconciliation,
            lambda: self.connections.links,
            compare_all=self.anti_entropy.compare,
            met_others=self.reach.met_others,
            timeout_s=config.mastership.timeout_s,
        )
        self.router = Router(
            store,
            self.mastership,
            self.handover,
            self.durability,
            self.prestage,
            met_others=self.reach.met_others,
            wait_to_number=self.readiness.wait_to_number,
            metrics=metrics.changes,
        )
        self.read_your_writes = ReadYourWrites(store, self.mastership)
        self.fork_scheduler = ForkScheduler(
            store,
            self.mastership,
            self.fork_merger,
            self.reconciliation,
            self.carry_out,
            new_guid=environment.new_guid,
        )
        self.state_transfer = StateTransfer(
            store,
            self.mastership,
            self.reconciliation,
            self._ask_again,
            self.settled_logs.known,
            claimed=self._claimed,
        )
        self.bootstrap = Bootstrap(store, archive, environment.clock_ms) if archive else None
        self.remotes = RemoteEntries(config.checkpoint, config.node.cluster, environment)
        self.log_truncation = (
            LogTruncation(store, archive, self.settled_logs, config.log, environment, forget=self.remotes.forget)
            if archive
            else NoLogTruncation()
        )
        self.disk_shortage = DiskShortage(config.node.data, config.content.attachments or config.node.data, environment)
        self.feeds = Feeds(
            store,
            self.elections.ships,
            self.connections.link,
            too_old=self.state_transfer.begin,
            remotes=self.remotes,
            bodies=self.bodies,
            disk_shortage=self.disk_shortage,
            clock_ms=environment.clock_ms,
        )
        self.acknowledgements = Acknowledgements(store, self.elections, self.feeds, self.durability)
        self.overdue_entries = OverdueEntries(
            store,
            self.feeds,
            self.mastership,
            self.reach,
            fork_merger=self.fork_merger,
            reconciliation=self.reconciliation,
            fork_scheduler=self.fork_scheduler,
            handover=self.handover,
            abandoned=AbandonedEntries(store, self.bodies, self.carry_out, environment.new_guid),
        )
        self._peer_requests = PeerRequests(
            store,
            self.elections,
            self.mastership,
            handover=self.handover,
            bodies=self.bodies,
            body_conflicts=self.body_conflicts,
            prestage=self.prestage,
            router=self.router,
            lacks=self.fork_scheduler.lacks,
            new_id=environment.new_guid,
            run_in_thread=environment.run_in_thread,
        )

    async def run(self) -> None:
        """Run all parts of replication until cancelled."""
        mastership = self.config.mastership
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stall_detector.run)
            nursery.start_soon(self.connections.run)
            nursery.start_soon(self.elections.run, mastership.heartbeat_s)
            nursery.start_soon(self.durability.run, mastership.heartbeat_s)
            nursery.start_soon(self.feeds.tell, mastership.heartbeat_s)
            nursery.start_soon(self.feeds.gaps.run)
            nursery.start_soon(self.remotes.run)
            nursery.start_soon(self.handover.run)
            nursery.start_soon(self.settled_logs.run)
            nursery.start_soon(self.fork_scheduler.run, mastership.heartbeat_s)
            nursery.start_soon(self.overdue_entries.run)
            nursery.start_soon(self.state_transfer.run)
            nursery.start_soon(self.anti_entropy.run)
            nursery.start_soon(self.bodies.run)
            nursery.start_soon(self.prestage.run)
            nursery.start_soon(self._begin_log)
            nursery.start_soon(self.log_truncation.run)
            nursery.start_soon(self.readiness.run)
            await self.admission.run()
            self.durability.changed()
            await self.reach.meet_others(mastership.timeout_s)

    def reconfigure(self, config: Config) -> None:
        """Take over peers, removed nodes, priority and durability of another configuration; all else stays as it is.

        Links to nodes that are no peers any more end at once, and so does the term.
        """
        node = replace(self.config.node, removed=config.node.removed, priority=config.node.priority)
        self.config = replace(self.config, node=node, peers=config.peers, durability=config.durability)
        self.reach.removed = node.removed
        self.elections.reconfigure(node.priority, node.removed)
        self.durability.config = config.durability
        self.prestage.wanted = config.durability.copies - 1
        self.connections.set_peers(config.peers)
        self.store.take_share(share_of(self.sid, self.connections.peers))
        self.mastership.note_met()
        self.admission.peers_changed()
        self._reach_changed()

    async def leave(self) -> None:
        """Number nothing any more, and wait until the peers have all that this node has numbered, and their replies.

        That takes `timing.LEAVE_S` at most. The next masters continue where this node ends. If a peer lacked an entry,
        it would come when this node is back, as a branch of its own, and a merge would give new UIDs to mail that
        clients have seen.
        """
        self.mastership.retire()
        self.connections.announce_stop()
        with trio.move_on_after(timing.LEAVE_S):
            await self.store.flush()
            last = Dot(self.store.origin, self.store.context.get(self.store.origin, 0))
            async with trio.open_nursery() as nursery:
                for feed in self.feeds.values():
                    nursery.start_soon(self._leave, feed, last)

    @staticmethod
    async def _leave(feed: Feed, last: Dot) -> None:
        await feed.sender.wait_acknowledged(last)
        await feed.link.wait_answered()
        with suppress(LinkDownError):
            await feed.link.request(Ping())  # commands are read in order: the peer knows that this node stops

    @property
    def taken_over(self) -> tuple[int, int]:
        """Number of mailboxes and trees taken over so far, and their total; (0, 0) if none are being taken over."""
        if self.bootstrap is not None and not self.feeds.may_ask.is_set():
            return self.bootstrap.done, self.bootstrap.total
        return (self.state_transfer.done, self.state_transfer.total) if self.state_transfer.is_running else (0, 0)

    # ---- changes

    async def submit(self, operation: ChangeRequest) -> Reply:
        """Make a change for a client of this node: as `carry_out`, and note that the mailbox is in use here."""
        self.handover.changed(operation.key)
        return await self.carry_out(operation)

    async def carry_out(self, operation: ChangeRequest) -> Reply:
        """See `Router.carry_out`."""
        return await self.router.carry_out(operation)

    # ---- as the owner of links

    async def link_up(self, link: PeerLink, task_status: trio.TaskStatus[None]) -> None:
        """See `LinkOwner`."""
        if self.connections.link(link.sid) is not link:  # it was dropped before this task's first step
            task_status.started()
            return
        feed = self.feeds.begin(link)
        self.durability.linked(link.sid, link.hello.origin)
        self.elections.link_up(link)
        self.settled_logs.link_up(link)
        self.admission.linked(link)
        self._reach_changed()
        task_status.started()
        await feed.run()

    def link_down(self, link: PeerLink) -> None:
        """See `LinkOwner`."""
        self.feeds.end(link)
        self.elections.link_down(link.sid)
        self._reach_changed()

    async def notice(self, link: PeerLink, command: Command) -> None:
        """See `LinkHandler`."""
        match command:
            case Links() | Root() | Dropped():
                self.elections.received(link, command)
                self._reach_changed()
            case Ack():
                self.acknowledgements.received(link, command)
            case Hello():
                self.admission.renewed(link, command)
            case Settled():
                self.settled_logs.received(link, command)
            case _ if isinstance(command, EntryCommand | Entries | Remote):
                await self.feeds.on(link).receiver.take(command)
            case _:
                raise ProtocolError(f"a {type(command).__name__.upper()} needs a tag")

    def asked_for_log(self, link: PeerLink, log: Log) -> Reply:
        """See `LinkHandler`."""
        reply = self.feeds.on(link).sender.asked(log)
        self.acknowledgements.count(link.sid, log.context)
        self.readiness.heard(link, log.context)
        return reply

    async def answer(self, link: PeerLink, command: Command) -> Reply:
        """See `LinkHandler`."""
        return await self._peer_requests.answer(link, command)

    async def _catch_up(self, key: MailboxKey) -> None:
        await self.reconciliation.catch_up(key)

    # ---- upkeep

    def _links_kept_up_with(self) -> list[PeerLink]:
        """Return the links to nodes that get an entry soon after it is numbered."""
        return [link for link in self.connections.links if link.sid not in self.lagging_peers]

    def _reach_changed(self) -> None:
        self.durability.changed()
        self.reach.changed()

    def _run_of(self, sid: str) -> str | None:
        return self.mastership.table.origin_of(sid)

    def _outlived(self, rival: str) -> None:
        self.connections.give_way(f"{self.sid} already runs as {rival}, according to other nodes; {HOW_TO_PART}")

    def _went_on(self, after_s: float) -> None:
        log.warning(
            "this node stood still for %.1f s, and other nodes may have become masters in its place:"
            " reconnecting to all peers",
            after_s,
        )
        self.connections.drop_links()
        self.mastership.went_on()

    def _term_began(self, term: int) -> None:
        self._metrics.mastership.terms.inc()
        self.mastership.term_began(term)

    def _routes_changed(self) -> None:
        self.feeds.routes_changed()

    async def _begin_log(self) -> None:
        """Take over checkpoints, if this node is new, before peers are asked for the entries after them."""
        if self.bootstrap is not None:
            await self.bootstrap.run()
        self.feeds.may_ask.set()

    def _ask_again(self) -> None:
        self.feeds.ask_again()

    def _claimed(self, sid: str) -> Context:
        return self.feeds.claimed(sid)
