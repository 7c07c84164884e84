"""Both directions of the log on every link: who sends, who takes in, and what each peer has said that it has.

What a peer has said outlives its link, so that its lag is known while it is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import trio

from replicator.replication.bodies.download import Downloader
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.links.object_entries import RemoteEntries
from replicator.replication.log.body_completion import BodyCompletion
from replicator.replication.log.disk_shortage import DiskShortage
from replicator.replication.log.gap_recovery import GapRecovery
from replicator.replication.log.receiver import LinkTo, Receiver, TooOld
from replicator.replication.log.sender import Sender, Ships
from replicator.store.db.transaction import Commit
from replicator.store.store import Store

TELL_AGAIN_S = 30.0
LACK_S, LACK_MAX_S = 10.0, 600.0  # before the log is asked for again; at last


@dataclass(slots=True)
class _Lack:
    """This node has so much of an origin, and a peer more."""

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
        """Ship and take in until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.sender.run)
            nursery.start_soon(self.receiver.run)


class Feeds(Mapping[str, Feed]):
    """SID -> the feed on its link, while that is up. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        ships: Ships,
        link_to: LinkTo,
        *,
        too_old: TooOld,
        remotes: RemoteEntries,
        downloader: Downloader,
        disk_shortage: DiskShortage,
        clock_ms: Callable[[], int],
        holes_patience_s: float,
    ) -> None:
        self._store = store
        self._ships = ships
        self._link_to = link_to
        self._too_old = too_old
        self._remotes = remotes
        self._downloader = downloader
        self._disk_shortage = disk_shortage
        self._clock_ms = clock_ms
        self.holes = GapRecovery(store, self._start_again, holes_patience_s)
        self.may_ask = trio.Event()  # peers for their logs; until then nothing comes
        self._feeds: dict[str, Feed] = {}
        self._contexts: dict[str, dict[str, int]] = {}
        self._lacks: dict[str, _Lack] = {}  # origin -> what peers have more of it
        store.listeners.append(self._note_commit)

    def __getitem__(self, sid: str) -> Feed:
        return self._feeds[sid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._feeds)

    def __len__(self) -> int:
        return len(self._feeds)

    def begin(self, link: PeerLink) -> Feed:
        """A link stands; its feed is the caller's to run."""
        sender = Sender(self._store, link, self._ships, self._remotes, self.holes)
        receiver = Receiver(
            self._store,
            link,
            self._link_to,
            too_old=self._too_old,
            may_ask=self.may_ask,
            remotes=self._remotes,
            body_completion=BodyCompletion(self._downloader, link, self._clock_ms, self._disk_shortage),
            disk_shortage=self._disk_shortage,
        )
        feed = self._feeds[link.sid] = Feed(link, sender, receiver)
        return feed

    def end(self, link: PeerLink) -> None:
        """A link has ended."""
        if (feed := self._feeds.pop(link.sid, None)) is not None:
            self._remember(feed)

    def on(self, link: PeerLink) -> Feed:
        """The link's feed. Raises LinkDownError if another link has replaced it."""
        feed = self._feeds.get(link.sid)
        if feed is None or feed.link is not link:
            raise LinkDownError(link.sid)
        return feed

    def context(self, sid: str) -> dict[str, int] | None:
        """What a peer has said that it has, be it before its link went down; None: nothing since this node's start."""
        if (feed := self._feeds.get(sid)) is not None:
            self._remember(feed)
        return self._contexts.get(sid)

    def ask_again(self) -> None:
        """Let all peers send what this node lacks."""
        for feed in self._feeds.values():
            feed.receiver.ask_again()

    def doubt(self) -> None:
        """Ask all peers anew for what this node lacks, tell them anew what it has, and look anew what they lack."""
        self._lacks = {}
        for feed in self._feeds.values():
            feed.receiver.tell(again=True)
            feed.receiver.ask_again()
            feed.sender.doubt()

    def routes_changed(self) -> None:
        """What goes to whom is another question now."""
        for feed in self._feeds.values():
            feed.sender.start_again()
            feed.receiver.routes_changed()

    async def tell(self, heartbeat_s: float) -> None:
        """Acknowledge what came by other ways, at every heartbeat, until cancelled.

        All of it every `TELL_AGAIN_S`: an ACK may have come as another one. In the same way this node looks whether it
        lacks what peers say they have, for a LOG may have come as another one, and then nothing tells of a gap.
        """
        told_at = trio.current_time()
        while True:
            await trio.sleep(heartbeat_s)
            is_time = trio.current_time() >= told_at + TELL_AGAIN_S
            told_at = trio.current_time() if is_time else told_at
            for feed in self._feeds.values():
                feed.receiver.tell(again=is_time)
            if self._lacks_for_long():
                self.ask_again()

    def _lacks_for_long(self) -> bool:
        """Whether a peer has had for a while what this node lacks, and nothing more of that origin has come."""
        now, context = trio.current_time(), self._store.context
        if not all(feed.link.is_quick and not feed.receiver.is_taking for feed in self._feeds.values()):
            return False  # it may be on its way
        lacking = {
            origin
            for feed in self._feeds.values()
            for origin, seq in feed.sender.acknowledged.items()
            if seq > context.get(origin, 0)
        }
        for origin in lacking:
            lack = self._lacks.get(origin)
            if lack is None or lack.has != context.get(origin, 0):
                self._lacks[origin] = _Lack(context.get(origin, 0), now + LACK_S, LACK_S)
        self._lacks = {origin: lack for origin, lack in self._lacks.items() if origin in lacking}
        due = [lack for lack in self._lacks.values() if now >= lack.ask_at]
        for lack in due:
            lack.pause_s = min(2 * lack.pause_s, LACK_MAX_S)
            lack.ask_at = now + lack.pause_s
        return bool(due)

    def _note_commit(self, commit: Commit) -> None:
        if commit.collected:
            self._start_again()

    def _start_again(self) -> None:
        for feed in self._feeds.values():
            feed.sender.start_again()

    def _remember(self, feed: Feed) -> None:
        """What the peer has acknowledged, and what it has numbered itself."""
        if feed.sender.has_context:
            origin = feed.link.hello.origin
            has = {**feed.sender.acknowledged, origin: self._store.context.get(origin, 0)}
            self._contexts[feed.link.sid] = has
