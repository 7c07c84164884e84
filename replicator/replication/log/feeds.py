"""Both directions of the log on every link: its sender, its receiver, and the context that each peer has reported.

A peer's reported context outlives its link, so that its lag is known while the peer is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import trio

from protocol.values import Context
from replicator.replication import timing
from replicator.replication.bodies import Bodies
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.links.object_entries import RemoteEntries
from replicator.replication.log.body_completion import BodyCompletion
from replicator.replication.log.disk_shortage import DiskShortage
from replicator.replication.log.entry_counts import EntryCounts
from replicator.replication.log.gap_recovery import GapRecovery
from replicator.replication.log.receiver import LinkTo, Receiver, TooOld
from replicator.replication.log.sender import Sender, Ships
from replicator.store.db.transaction import Commit
from replicator.store.store import Store


@dataclass(slots=True)
class _Lack:
    """An origin of which a peer has more than this node, and the time of the next request for the log.

    `has` is this node's last seq of the origin; `ask_at` and `pause_s` are in seconds.
    """

    has: int
    ask_at: float
    pause_s: float


@dataclass(slots=True)
class Feed:
    """Both directions of the log on one link."""

    link: PeerLink
    sender: Sender
    receiver: Receiver

    async def run(self) -> None:
        """Send and receive until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.sender.run)
            nursery.start_soon(self.receiver.run)


class Feeds(Mapping[str, Feed]):
    """SID -> the feed of the link to that peer, while the link is up. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        ships: Ships,
        link_to: LinkTo,
        *,
        too_old: TooOld,
        remotes: RemoteEntries,
        bodies: Bodies,
        disk_shortage: DiskShortage,
        clock_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._ships = ships
        self._link_to = link_to
        self._too_old = too_old
        self._remotes = remotes
        self._bodies = bodies
        self._disk_shortage = disk_shortage
        self._clock_ms = clock_ms
        self.gaps = GapRecovery(store, self._start_again)
        self.may_ask = trio.Event()  # set when peers may be asked for their logs; they send nothing before
        self._feeds: dict[str, Feed] = {}
        self._contexts: dict[str, dict[str, int]] = {}
        self._counts: dict[str, EntryCounts] = {}
        self._lacks: dict[str, _Lack] = {}  # origins of which a peer has more than this node
        store.listeners.append(self._note_commit)

    def __getitem__(self, sid: str) -> Feed:
        return self._feeds[sid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._feeds)

    def __len__(self) -> int:
        return len(self._feeds)

    def begin(self, link: PeerLink) -> Feed:
        """Create the feed of a link that has come up. The caller runs the feed."""
        counts = self.counts(link.sid)
        sender = Sender(self._store, link, self._ships, remotes=self._remotes, gaps=self.gaps, counts=counts)
        receiver = Receiver(
            self._store,
            link,
            self._link_to,
            too_old=self._too_old,
            may_ask=self.may_ask,
            remotes=self._remotes,
            body_completion=BodyCompletion(self._bodies, link, self._clock_ms, self._disk_shortage),
            disk_shortage=self._disk_shortage,
            counts=counts,
        )
        feed = self._feeds[link.sid] = Feed(link, sender, receiver)
        return feed

    def end(self, link: PeerLink) -> None:
        """Drop the feed of a link that has ended."""
        if (feed := self._feeds.pop(link.sid, None)) is not None:
            self._remember(feed)
            feed.sender.link_down()

    def on(self, link: PeerLink) -> Feed:
        """Return the link's feed. Raises LinkDownError if another link has replaced it."""
        feed = self._feeds.get(link.sid)
        if feed is None or feed.link is not link:
            raise LinkDownError(link.sid)
        return feed

    def context(self, sid: str) -> dict[str, int] | None:
        """Return the context that the peer last reported, possibly on a link that is down by now.

        None if the peer has reported nothing since this node's start.
        """
        if (feed := self._feeds.get(sid)) is not None:
            self._remember(feed)
        return self._contexts.get(sid)

    def counts(self, sid: str) -> EntryCounts:
        """Return the count of entries that went to and from the peer, which is kept up to date."""
        return self._counts.setdefault(sid, EntryCounts())

    def claimed(self, sid: str) -> Context:
        """Return what the peer says, by LOG and ACK on the present link, is on its disk; empty without a link."""
        feed = self._feeds.get(sid)
        return feed.sender.acknowledged if feed is not None else {}

    def ask_again(self) -> None:
        """Ask all peers for the entries that this node lacks."""
        for feed in self._feeds.values():
            feed.receiver.ask_again()

    def doubt(self) -> None:
        """Trust nothing that was sent: repeat requests and acknowledgements to all peers, resend what they lack."""
        self._lacks = {}
        for feed in self._feeds.values():
            feed.receiver.tell(again=True)
            feed.receiver.ask_again()
            feed.sender.doubt()

    def routes_changed(self) -> None:
        """Decide anew which entries to send to each peer, since routes have changed."""
        for feed in self._feeds.values():
            feed.sender.start_again()
            feed.receiver.routes_changed()

    async def tell(self, heartbeat_s: float) -> None:
        """Acknowledge entries that came by other routes, at every heartbeat, until cancelled.

        Every `ACK_REPEAT_S` all entries are acknowledged again, in case an ACK was altered in transit. An altered LOG
        could leave missing entries unnoticed, so each heartbeat also checks if peers have had for some time what this
        node lacks.
        """
        told_at = trio.current_time()
        while True:
            await trio.sleep(heartbeat_s)
            is_time = trio.current_time() >= told_at + timing.ACK_REPEAT_S
            told_at = trio.current_time() if is_time else told_at
            for feed in self._feeds.values():
                feed.receiver.tell(again=is_time)
            if self._lacks_for_long():
                self.ask_again()

    def _lacks_for_long(self) -> bool:
        """Return True if it is time to ask again for entries that a peer has and this node has long lacked.

        An origin counts as lacking only while nothing more of it arrives.
        """
        now, context = trio.current_time(), self._store.context
        if not all(feed.link.is_quick and not feed.receiver.is_taking for feed in self._feeds.values()):
            return False  # the entries may be on their way
        lacking = {
            origin
            for feed in self._feeds.values()
            for origin, seq in feed.sender.acknowledged.items()
            if seq > context.get(origin, 0)
        }
        for origin in lacking:
            lack = self._lacks.get(origin)
            if lack is None or lack.has != context.get(origin, 0):
                self._lacks[origin] = _Lack(context.get(origin, 0), now + timing.LACK_S, timing.LACK_S)
        self._lacks = {origin: lack for origin, lack in self._lacks.items() if origin in lacking}
        due = [lack for lack in self._lacks.values() if now >= lack.ask_at]
        for lack in due:
            lack.pause_s = min(2 * lack.pause_s, timing.LACK_MAX_S)
            lack.ask_at = now + lack.pause_s
        return bool(due)

    def _note_commit(self, commit: Commit) -> None:
        if commit.collected or commit.corrected:  # senders may have read entries as they were before
            self._start_again()

    def _start_again(self) -> None:
        for feed in self._feeds.values():
            feed.sender.start_again()

    def _remember(self, feed: Feed) -> None:
        """Remember the peer's context: the entries that it has acknowledged, and those that it has numbered."""
        if feed.sender.has_context:
            origin = feed.link.hello.origin
            has = {**feed.sender.acknowledged, origin: self._store.context.get(origin, 0)}
            self._contexts[feed.link.sid] = has
