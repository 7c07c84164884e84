"""The node among its peers: every change finds its master here, from this node's clients or from other nodes.

`perform` runs an operation where it belongs. If this node is the master, the store numbers it and the reply waits
until enough disks have it; if not, it goes on to the next node on the way to the master, and the reply comes back
the same way. The caller is never told to try elsewhere.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import trio

from master_election.scopes import ScopePolicy
from protocol.codec import ProtocolError
from protocol.commands import (
    Ack,
    Command,
    Dropped,
    EntryCommand,
    FetchGuid,
    FetchHash,
    FetchUid,
    Links,
    Log,
    MasterMove,
    Mbox,
    Ranges,
    RefusalCode,
    Refused,
    Remote,
    Reply,
    Root,
    Rows,
    Saved,
    Settled,
    SyncEnd,
    SyncMailbox,
    SyncNode,
    Who,
)
from protocol.values import Dot, sid_of
from replicator.config import Config
from replicator.environment import Environment
from replicator.errors import DiskFullError, FolderNotFoundError, MailError, UnavailableError
from replicator.replication import comparison, content, snapshots
from replicator.replication.bases import Bases, LogAlone
from replicator.replication.circles import Forwarded
from replicator.replication.collecting import Collector, NoCollector
from replicator.replication.connections import Certify, Connections, Dial
from replicator.replication.durability import Durability
from replicator.replication.feeds import Feeds
from replicator.replication.filling import Filler
from replicator.replication.healing import Healer
from replicator.replication.joining import Joiner
from replicator.replication.link import LinkDownError, PeerLink
from replicator.replication.mastership import RETRY_S, Mastership
from replicator.replication.moving import Mover
from replicator.replication.operations import NotHereYetError, Operation, dots_of, from_command
from replicator.replication.remote import RemoteEntries
from replicator.replication.seeding import Seeder
from replicator.replication.settling import Settling
from replicator.replication.shipping import check_claims
from replicator.replication.state_transfer import StateTransfer
from replicator.replication.wire import error_of, refusal
from replicator.store import reading
from replicator.store.archive import Archive
from replicator.store.damage import DatabaseDamagedError
from replicator.store.reading import MailboxKey
from replicator.store.store import Store
from replicator.store.transaction import Commit, Transaction

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 30.0  # of one change, from the client's command to its durability
ASK_AFTER_S = 0.5  # for ACKs that are on their way
SHOW_TIMEOUT_S = 10.0  # for this node to show what was done
SOURCE_TIMEOUT_S = 3.0  # for what a request speaks of to arrive at the mailbox's master


class _NotOursError(MailError):
    """The change was not numbered: the term has ended, or the mailbox has another master now."""


class _NotMasterError(MailError):
    """The change goes back where it came from: the node that sent it knows an old master."""


class Coordinator:
    """Belongs to the event loop. Owns the links and what runs on them."""

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
    ) -> None:
        self.config = config
        self.store = store
        self.sid = config.node.id
        self.connections = Connections(
            config, store.origin, environment, owner=self, dial=dial, certify=certify, capabilities=capabilities
        )
        self.durability = Durability(config.durability, self._others)
        self.mastership = Mastership(
            self.sid,
            store,
            clock_ms=environment.clock_ms(),
            policy=ScopePolicy(config.mastership.scope),
            priority=config.node.priority,
            link_to=self.connections.link,
            catch_up=self._catch_up,
            timeout_s=config.mastership.timeout_s,
            routes_changed=self._routes_changed,
        )
        self.settling = Settling(
            store,
            self.mastership.table,
            clock_ms=environment.clock_ms(),
            peers=[peer.id for peer in config.peers],
            links=lambda: self.connections.links,
        )
        self.mover = Mover(store, self.mastership, config.mastership.timeout_s)
        self.bases = Bases(store, archive, environment.run_in_thread) if archive else LogAlone()
        self.joiner = Joiner(store, self.mastership, self.bases, config.conflict.uid)
        self.healer = Healer(store, self.mastership, self.joiner, self.carry_out)
        self.transfer = StateTransfer(store, self.mastership, self.joiner, self._ask_again)
        self.seeder = Seeder(store, archive, environment.clock_ms) if archive else None
        self.filler = Filler(store, environment, self.fetch_content)
        self.remotes = RemoteEntries(config.checkpoint, config.node.cluster, environment)
        self.collector = (
            Collector(store, archive, self.settling, config.log, environment, forget=self.remotes.forget)
            if archive
            else NoCollector()
        )
        self.feeds = Feeds(store, self.mastership.ships, self.connections.link, self.transfer.begin, self.remotes)
        self._snapshots = snapshots.Snapshots(store)
        self._new_id = environment.new_guid
        self._forwarded = Forwarded()
        self._complete = trio.Event()
        self._committed = trio.Event()
        store.listeners.append(self._note_commit)

    async def run(self) -> None:
        """Keep links and masters until cancelled."""
        mastership = self.config.mastership
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.connections.run)
            nursery.start_soon(self.mastership.run, mastership.heartbeat_s)
            nursery.start_soon(self.feeds.tell, mastership.heartbeat_s)
            nursery.start_soon(self.remotes.run)
            nursery.start_soon(self.mover.run)
            nursery.start_soon(self.settling.run)
            nursery.start_soon(self.healer.run, mastership.heartbeat_s)
            nursery.start_soon(self.transfer.run)
            nursery.start_soon(self.filler.run)
            nursery.start_soon(self._begin_log)
            nursery.start_soon(self.collector.run)
            self._note_component()
            with trio.move_on_after(mastership.timeout_s):
                await self._complete.wait()
            self._complete.set()

    @property
    def taken_over(self) -> tuple[int, int]:
        """How many mailboxes and trees have been taken over, and of how many; (0, 0): none are being taken over."""
        if self.seeder is not None and not self.feeds.may_ask.is_set():
            return self.seeder.done, self.seeder.total
        return (self.transfer.done, self.transfer.total) if self.transfer.is_running else (0, 0)

    # ---- changes

    async def submit(self, operation: Operation) -> Reply:
        """Do what a client of this node asks: as `carry_out`, and the mailbox is in use here."""
        self.mover.changed(operation.key)
        return await self.carry_out(operation)

    async def carry_out(self, operation: Operation) -> Reply:
        """Make a change; return when it is durable and this node shows it. Raises MailError.

        A node that is so far behind that it cannot show it soon returns without that.
        """
        reply: Reply | None = None
        with trio.move_on_after(REQUEST_TIMEOUT_S):
            await self._complete.wait()
            reply = await self.perform(operation)
        if reply is not None:
            # It is done and durable: a node that is far behind must not make its client try again.
            with trio.move_on_after(SHOW_TIMEOUT_S):
                for dot in dots_of(reply):
                    await self.store.wait_applied(dot)
            return reply
        raise UnavailableError("the change was not confirmed in time; it may or may not have been made; try again")

    async def perform(self, operation: Operation, came_from: PeerLink | None = None) -> Reply:
        """Bring an operation to its master and return its reply. Raises MailError. Waits without a bound."""
        key = operation.key
        # A node that has just started may be behind: it does not number before it has had time to meet the others.
        await self._complete.wait()
        while True:
            master = await self.mastership.find(key)
            if master == self.sid:
                if not self.mastership.may_number(key):
                    await self.mastership.get_ready(key)
                    continue
                try:
                    return await self._number(operation)
                except _NotOursError:
                    continue
                except (DiskFullError, DatabaseDamagedError):
                    if came_from is None:
                        raise
                    await self.mover.resign(key, came_from.sid)
                    raise _NotMasterError from None
            link = self.mastership.toward(master)
            if link is not None and came_from is not None and (link is came_from or operation in self._forwarded):
                self.mastership.bounced(key)
                raise _NotMasterError
            reply = await self._forward(operation, link, master) if link else None
            if reply is not None:
                return reply
            self.mastership.bounced(key)
            await trio.sleep(RETRY_S)

    async def _forward(self, operation: Operation, link: PeerLink, master: str) -> Reply | None:
        """The reply of the master that this link leads to; None: there is none, and it can be tried again."""
        term = self.mastership.masters.term
        try:
            with self._forwarded.passing(operation):
                reply = await link.request(operation.command)
        except LinkDownError:
            if operation.can_repeat:
                return None
            raise UnavailableError("the link broke; the change may or may not have been made") from None
        match reply:
            case Refused(code=RefusalCode.NOT_MASTER):
                return None
            case Refused():
                raise error_of(reply)
            case Saved(master=None):
                return replace(reply, master=master)
            case Saved(master=str(named)) if named != master:
                self.mastership.named(operation.key, named, term)
                return reply
            case _:
                return reply

    async def _number(self, operation: Operation) -> Reply:
        self.durability.check()
        reply = await self._run(operation)
        for dot in dots_of(reply):
            await self._wait_durable(operation.key, dot)
        return reply

    async def _wait_durable(self, key: MailboxKey, dot: Dot) -> None:
        """A change that was there already rests on another node's entry, whose ACKs go to that node."""
        if dot.origin != self.store.origin:
            with trio.move_on_after(ASK_AFTER_S):
                return await self.durability.wait(dot)
            await comparison.ask_who_has(self.store, self.mastership, self.durability, key)
        return await self.durability.wait(dot)

    async def _run(self, operation: Operation) -> Reply:
        mastership = self.mastership
        term = mastership.masters.term

        def run(tx: Transaction) -> Reply:
            # In the writer's turn: what comes after the flush that ends a term, or a move, is not numbered any more.
            if mastership.masters.term != term or not mastership.is_ours(operation.key):
                raise _NotOursError
            _check_mailbox(tx, operation.key)
            return operation.run(tx)

        until = trio.current_time() + SOURCE_TIMEOUT_S
        while True:
            committed = self._committed
            with suppress(NotHereYetError):
                return await self.store.write(run)  # however slow the disk is
            with trio.move_on_at(until):
                await committed.wait()
                continue
            raise UnavailableError(
                "a message of the request is gone, or has not arrived at the mailbox's master; try again"
            )

    async def fetch_content(self, content_hash: bytes) -> bytes | None:
        """A message text from a neighbour that has it whole."""
        return await content.fetch(self.connections.links, content_hash)

    # ---- as the owner of links

    async def link_up(self, link: PeerLink, task_status: trio.TaskStatus[None]) -> None:
        """See `LinkOwner`."""
        feed = self.feeds.begin(link)
        self.durability.linked(link.sid, link.hello.origin)
        self.mastership.link_up(link)
        self.settling.link_up(link)
        self._note_component()
        task_status.started()
        await feed.run()

    def link_down(self, link: PeerLink) -> None:
        """See `LinkOwner`."""
        self.feeds.end(link)
        self.mastership.link_down(link.sid)
        self._note_component()

    async def notice(self, link: PeerLink, command: Command) -> None:
        """See `LinkHandler`."""
        match command:
            case Links() | Root() | Dropped():
                self.mastership.received(link, command)
                self._note_component()
            case Ack():
                self._acknowledged(link, command)
            case Settled():
                self.settling.received(link, command)
            case _ if isinstance(command, EntryCommand | Remote):
                await self.feeds.on(link).receiver.take(command)
            case _:
                raise ProtocolError(f"a {type(command).__name__.upper()} needs a tag")

    async def answer(self, link: PeerLink, command: Command) -> Reply:
        """See `LinkHandler`."""
        try:
            with trio.move_on_after(REQUEST_TIMEOUT_S):
                return await self._answer(link, command)
            return Refused(RefusalCode.UNAVAILABLE, "not done in time")
        except _NotMasterError:
            return Refused(RefusalCode.NOT_MASTER, f"{self.sid} would send it back; ask the root again")
        except MailError as error:
            return refusal(error)
        except LinkDownError as error:
            return Refused(RefusalCode.UNAVAILABLE, f"the link to {error} broke")
        except sqlite3.Error as error:
            log.exception("a request of %s met a failure of the database", link.sid)
            return Refused(RefusalCode.UNAVAILABLE, f"the database of {self.sid} failed: {error}")

    async def _answer(self, link: PeerLink, command: Command) -> Reply:
        match command:
            case Log(context):
                reply = self.feeds.on(link).shipper.asked(command)
                self._holds(link.sid, context)
                return reply
            case Who():
                return await self.mastership.answer_who(command)
            case MasterMove():
                return await self.mover.move(_named(link, command.mailbox), command, link)
            case Mbox():
                return await comparison.compare(self.store, self.mastership, link, command, self.healer.lacks)
            case SyncNode() | SyncMailbox() | Ranges() | Rows() | SyncEnd():
                return await snapshots.answer(self._snapshots, self.mastership, link, command)
            case FetchHash() | FetchGuid() | FetchUid():
                return await content.answer_fetch(self.store, link, command)
            case _:
                operations = from_command(link, command, self._new_id)
                if not operations:
                    text = f"{type(command).__name__.upper()} is not available in this version"
                    return Refused(RefusalCode.UNSUPPORTED, text)
                replies = [await self.perform(operation, link) for operation in operations]
                return replies[0] if len(replies) == 1 else _joined(replies)

    async def _catch_up(self, key: MailboxKey) -> None:
        await self.joiner.catch_up(key)

    # ---- upkeep

    def _others(self) -> list[str]:
        return [sid for sid in self.mastership.table.component if sid != self.sid]

    def _acknowledged(self, link: PeerLink, ack: Ack) -> None:
        """Raises ProtocolError. What another node waits for goes on to it."""
        claim = Dot(ack.origin, ack.seq)
        check_claims(self.store, (claim,))
        if ack.sid is None:
            self.feeds.on(link).shipper.acked(ack)
        holder, author, table = ack.sid or link.sid, sid_of(ack.origin), self.mastership.table
        if holder not in table.component:
            return
        self._holds(holder, (claim,))
        if table.next_hop_from(link.sid, author) == self.sid and (onward := self.mastership.toward(author)) is not None:
            onward.post(Ack(ack.origin, ack.seq, holder))

    def _holds(self, sid: str, claims: Iterable[Dot]) -> None:
        """Nobody waits for entries of origins of which nothing is here: what is said of them takes no memory."""
        self.durability.acknowledged(sid, {origin: seq for origin, seq in claims if origin in self.store.context})

    def _note_component(self) -> None:
        self.durability.changed()
        if {peer.id for peer in self.config.peers} <= set(self.mastership.table.component):
            self._complete.set()

    def _routes_changed(self) -> None:
        self.feeds.routes_changed()

    async def _begin_log(self) -> None:
        """A new node takes over checkpoints before it asks its peers for what came after them."""
        if self.seeder is not None:
            await self.seeder.run()
        self.feeds.may_ask.set()

    def _ask_again(self) -> None:
        self.feeds.ask_again()

    def _note_commit(self, commit: Commit) -> None:
        if commit.adopted:
            self.collector.wanted()
        if commit.applied:
            self._committed.set()
            self._committed = trio.Event()


def _check_mailbox(tx: Transaction, key: MailboxKey) -> None:
    """Raises FolderNotFoundError for UIDs of the past: the folder has another UIDVALIDITY now, or another owner."""
    chain = tx.chain(key.mailbox_id)
    if chain is None:
        return
    uidvalidity = reading.uidvalidity(tx.connection, key.mailbox_id) or chain.uidvalidity
    if chain.user != key.user or uidvalidity > key.uidvalidity:
        raise FolderNotFoundError("the folder is another one by now; open it again")


def _named(link: PeerLink, number: int) -> MailboxKey:
    key = link.key_of(number)
    if key is None:
        raise ProtocolError(f"mailbox number {number} was not given by an MBOX before")
    return key


def _joined(replies: list[Reply]) -> Reply:
    saved = [reply for reply in replies if isinstance(reply, Saved)]
    return Saved(tuple(uid for one in saved for uid in one.uids), tuple(dot for one in saved for dot in one.dots))
