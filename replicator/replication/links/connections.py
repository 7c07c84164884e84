"""Establishes and keeps links: accepts and dials connections, redials, and serves each link until it ends.

Of two nodes the one with the lower SID dials, so there is one link between them. When the same run of a peer dials
again, the new link replaces the old one, since the peer knows best that the old one is dead. If a peer with a lower SID
has not dialled, this node sends it a HELLO, only to learn whether it would be refused (design section 5).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

import trio

from protocol import parser
from protocol.commands import Hello, RefusalCode, Refused
from protocol.stream_codec import Decoder, Encoder, ProtocolError
from replicator.config import Config, PeerConfig
from replicator.errors import HistoryError, MailError, RunsTwiceError, leaves
from replicator.replication import timing
from replicator.replication.links.handshake import (
    STOPPING,
    Certify,
    Handshake,
    HelloRefusedError,
    HelloTooLongError,
    LinkRefusedError,
    RefusedByPeerError,
)
from replicator.replication.links.link import LinkDownError, LinkHandler, Observer, PeerLink
from replicator.replication.links.object_entries import warn_of_another
from replicator.replication.links.rival_runs import PeerState, RivalRuns
from replicator.runtime.environment import Environment
from replicator.runtime.metrics import RefusalMetrics
from replicator.runtime.places import Limit, PlaceLimits, Places

log = logging.getLogger(__name__)

MAX_REASONS = 64  # that are remembered, so that each is logged once

Dial = Callable[[PeerConfig], Awaitable[trio.abc.Stream]]
_NoteErrors = Callable[[BaseExceptionGroup[BaseException]], None]


class _OnlyAskedError(LinkRefusedError):
    """A peer that this node dials has connected only to ask if it would be refused."""


class LinkOwner(LinkHandler, Protocol):
    """The receiver of link events and of what comes in on links."""

    async def link_up(self, link: PeerLink, task_status: trio.TaskStatus[None]) -> None:
        """Run as long as the link; cancelled when it ends. The link is not read before this has started."""
        ...

    def link_down(self, link: PeerLink) -> None:
        """Handle the end of a link."""
        ...


class Connections:
    """All links of one node. `origin` names this run of the node.

    `run_of` returns the origin under which a node can be reached, over any number of links; None if it cannot be.
    """

    def __init__(
        self,
        config: Config,
        origin: str,
        environment: Environment,
        *,
        owner: LinkOwner,
        dial: Dial,
        certify: Certify,
        capabilities: Callable[[], tuple[str, ...]] = tuple,
        run_of: Callable[[str], str | None] = lambda _: None,
        refusals: RefusalMetrics | None = None,
    ) -> None:
        parser.load()  # before clients are served, not when the first peer calls
        self._config = config
        self._refusals = refusals or RefusalMetrics()
        self._environment = environment
        self._owner = owner
        self._dial = dial
        self.peers = {peer.id: PeerState(peer) for peer in config.peers}
        self._handshake = Handshake(
            config, origin, environment, peers=self._configured, certify=certify, capabilities=capabilities
        )
        self._rivals = RivalRuns(config.node.id, config.mastership.timeout_s, run_of=run_of)
        self._gives_way = trio.Event()
        self._why = ""
        self._is_stopping = False
        self._observer: Observer | None = None
        self._strangers = Places(
            PlaceLimits(
                Limit(config.limits.peer_strangers, "peer_strangers"),
                strangers_per_address=Limit(config.limits.peer_strangers_per_address, "peer_strangers_per_address"),
            ),
            partial(self._refusals.refused, "peer"),
        )
        self._reasons: set[str] = set()  # why connections from unknown peers ended: each reason is logged once
        self._nursery: trio.Nursery | None = None  # of the calls, while they are made

    @property
    def links(self) -> list[PeerLink]:
        """The links that are up."""
        return [state.link for state in self.peers.values() if state.link is not None]

    def link(self, sid: str | None) -> PeerLink | None:
        """Return the link to a neighbour, if it is up."""
        state = self.peers.get(sid) if sid is not None else None
        return state.link if state else None

    def observe(self, observer: Observer | None) -> None:
        """Tell `observer` of every command on every link from now on; None: nobody."""
        self._observer = observer
        for link in self.links:
            link.observer = observer

    async def run(self) -> None:
        """Dial the peers with a higher SID, and ask the others if this node is refused, until cancelled.

        Raises RunsTwiceError when another process runs as this node and this one has to end.
        """
        try:
            async with trio.open_nursery() as self._nursery:
                for state in self.peers.values():
                    self._nursery.start_soon(self._call, state)
                await self._gives_way.wait()
                raise RunsTwiceError(self._why)
        finally:
            self._nursery = None

    def set_peers(self, peers: Iterable[PeerConfig]) -> None:
        """Replace the configured peers: links to those that are gone end, new ones are called, and accepted.

        A link stays if the address of its peer has changed; the next call goes to the new address.
        """
        wanted = {peer.id: peer for peer in peers}
        for sid in sorted(self.peers.keys() - wanted.keys()):
            self._part_from(sid)
        for sid, peer in wanted.items():
            if sid in self.peers:
                self.peers[sid].config = peer
            else:
                state = self.peers[sid] = PeerState(peer)
                if self._nursery is not None:
                    self._nursery.start_soon(self._call, state)

    def hello(self) -> Hello:
        """Return this node's HELLO as of now, for links that are up."""
        hello = self._handshake.hello()
        return replace(hello, capabilities=(*hello.capabilities, STOPPING)) if self._is_stopping else hello

    def drop_links(self) -> None:
        """End all links at once. They are redialled as usual."""
        for state in self.peers.values():
            if state.link is not None:
                self._drop(state, state.link)

    def announce_stop(self) -> None:
        """Tell all peers that this node is about to stop, so that they do not report broken links.

        The links stay up: if they ended first, a client could hear OK for what is on this node's disk alone.
        """
        self._is_stopping = True
        for link in self.links:
            link.post(self.hello())

    def give_way(self, why: str) -> None:
        """End this process, because another one that runs as this node stays."""
        self._why = self._why or why
        self._gives_way.set()

    async def accept(self, stream: trio.abc.Stream, address: str = "") -> None:
        """Serve a connection that a peer has made from this IP address. Return when it ends.

        A socket in the file system and a stream in memory have an empty address.
        """
        sid = None
        try:
            link = await self._welcome_in_turn(stream, address)
            sid = link.sid
            await self._serve(link)
        except* _OnlyAskedError:
            pass
        except* _LINK_ERRORS as errors:
            self._note_end(sid, errors)
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _welcome_in_turn(self, stream: trio.abc.Stream, address: str) -> PeerLink:
        """Await the HELLO of a connection; if too many connections are silent, drop one as `Places` says.

        So unknown clients that connect and stay silent cannot keep peers out.
        """
        async with self._strangers.admit(address) as place:
            if place is not None:
                try:
                    return await self._welcome(stream)
                except HelloTooLongError:
                    self._refusals.refused("peer", "peer_hello_bytes")
                    raise
        raise LinkRefusedError("too many connections had not sent HELLO yet")

    # ---- dialling

    async def _call(self, state: PeerState) -> None:
        """Dial a peer with a higher SID, ask one with a lower SID, until the peer is gone."""
        with state.calls:
            if self._config.node.id < state.config.id:
                await self._keep_dialling(state)
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._expect_call, state)
                    nursery.start_soon(self._keep_asking, state)

    def _part_from(self, sid: str) -> None:
        state = self.peers[sid]
        state.calls.cancel()
        if state.link is not None:
            self._drop(state, state.link)
        del self.peers[sid]
        log.info("%s is no peer of this node any more", sid)

    async def _keep_dialling(self, state: PeerState) -> None:
        # A peer that starts waits `timeout_s` for the other nodes before it numbers: they must have dialled by then.
        longest = min(timing.REDIAL_MAX_S, self._config.mastership.timeout_s / 2)
        delay = timing.REDIAL_FIRST_S
        while True:
            began = trio.current_time()
            await self._attempt(self._dial_once, state, partial(self._note_end, state.config.id))
            if trio.current_time() - began > longest:
                delay = timing.REDIAL_FIRST_S
            await trio.sleep(delay * self._environment.random.uniform(0.5, 1.0))
            delay = min(2 * delay, longest)

    @staticmethod
    async def _attempt(call: Callable[[PeerState], Awaitable[None]], state: PeerState, note: _NoteErrors) -> None:
        """Call a peer. Errors of the link go to `note`; a defect that the peer triggers is logged."""
        try:
            await call(state)
        except* _LINK_ERRORS as errors:
            note(errors)
        except* Exception:
            # The one place where a defect that a peer triggers ends the peer's link and not this node.
            log.exception("a defect in this program ended the link to %s", state.config.id)

    async def _dial_once(self, state: PeerState) -> None:
        async with self._called(state.config) as stream:
            with trio.fail_after(timing.HANDSHAKE_TIMEOUT_S):
                link = await self._greet(stream, state.config)
            await self._serve(link)

    @asynccontextmanager
    async def _called(self, peer: PeerConfig) -> AsyncIterator[trio.abc.Stream]:
        """Open a connection to the peer. Raises TooSlowError, and any error of the connection."""
        with trio.fail_after(timing.HANDSHAKE_TIMEOUT_S):
            stream = await self._dial(peer)
        try:
            yield stream
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _keep_asking(self, state: PeerState) -> None:
        """Ask a peer that does not dial whether it is linked to another run of this node."""

        def note(errors: BaseExceptionGroup[BaseException]) -> None:
            log.debug("%s neither dials nor answers: %s", state.config.id, leaves(errors)[0])

        while True:
            if state.link is None:  # also at the start, before a copy of the node serves clients
                await self._attempt(self._ask_once, state, note)
            await trio.sleep(self._config.mastership.timeout_s / 2)

    async def _ask_once(self, state: PeerState) -> None:
        async with self._called(state.config) as stream:
            with trio.fail_after(timing.HANDSHAKE_TIMEOUT_S):
                await self._ask(stream, state.config, Encoder(), Decoder())

    async def _greet(self, stream: trio.abc.Stream, peer: PeerConfig) -> PeerLink:
        """Exchange HELLOs as the dialling side."""
        encoder, decoder = Encoder(), Decoder()
        hello = await self._ask(stream, peer, encoder, decoder)
        self._handshake.check(hello, stream, expected=peer.id)
        await self._rivals.refuse(self.peers[hello.sid], hello)
        self._handshake.agree(hello, stream, encoder, decoder)
        return PeerLink(stream, hello, encoder, decoder, self._environment.run_in_thread)

    async def _ask(self, stream: trio.abc.Stream, peer: PeerConfig, encoder: Encoder, decoder: Decoder) -> Hello:
        """Send this node's HELLO and return the peer's. Make this node end if the peer's refusal requires that."""
        try:
            return await self._handshake.ask(stream, peer.id, encoder, decoder)
        except RefusedByPeerError as error:
            # A run with links is in another part of the cluster than the newer run, which ends when the parts meet.
            if error.code == RefusalCode.RUNS_TWICE or (error.code == RefusalCode.REPLACED and not self.links):
                self.give_way(f"{peer.id} refuses the link: {error.said}")
            raise

    async def _welcome(self, stream: trio.abc.Stream) -> PeerLink:
        """Exchange HELLOs as the accepting side."""
        encoder, decoder = Encoder(), Decoder()
        with trio.fail_after(timing.HANDSHAKE_TIMEOUT_S):
            tag, hello = await self._handshake.expect(stream, decoder)
            try:
                self._handshake.check(hello, stream)
                await self._rivals.refuse(self.peers[hello.sid], hello)
            except HelloRefusedError as error:
                state = self.peers.get(hello.sid)
                if state is not None and state.link is None:
                    state.error = str(error)
                await stream.send_all(encoder.response(tag, Refused(error.code, str(error))))
                raise
            await stream.send_all(encoder.response(tag, self._handshake.hello(stream)))
            if hello.sid > self._config.node.id:
                raise _OnlyAskedError
            self._handshake.agree(hello, stream, encoder, decoder)
            # The peer may refuse this node's HELLO: a link that the peer ends at once must not begin a term.
            first = await stream.receive_some()
        if not first:
            raise LinkRefusedError(f"{hello.sid} refused this node's HELLO; see the log of {hello.sid}")
        decoder.feed(bytes(first))
        return PeerLink(stream, hello, encoder, decoder, self._environment.run_in_thread)

    def _configured(self) -> list[PeerConfig]:
        return [state.config for state in self.peers.values()]

    # ---- serving

    async def _serve(self, link: PeerLink) -> None:
        state = self.peers.get(link.sid)
        if state is None:
            raise LinkRefusedError(f"{link.sid} has meanwhile left this node's configuration")
        if state.link is not None:
            if self._rivals.rival_of(state, link.hello.origin) is not None:
                raise LinkRefusedError(f"{link.sid} has meanwhile been linked as {state.link.hello.origin}")
            self._drop(state, state.link)
        state.link, state.error, state.since_ms = link, None, self._environment.clock_ms()
        state.has_stopped = False
        link.observer = self._observer
        state.established += 1
        if state.lost is not None and state.lost[0] == link.hello.origin:
            state.lost = None
        log.info("link to %s is up (%s)", link.sid, link.hello.origin)
        warn_of_another(self._config.checkpoint, link.hello)
        mastership = self._config.mastership
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._owner.link_up, link)
                await link.run(self._owner, heartbeat_s=mastership.heartbeat_s, timeout_s=mastership.timeout_s)
                nursery.cancel_scope.cancel()
        finally:
            self._forget(state, link)
        raise LinkRefusedError(f"{'this node' if link.scope.cancel_called else 'the peer'} closed the connection")

    def _drop(self, state: PeerState, link: PeerLink) -> None:
        link.scope.cancel()
        self._forget(state, link)

    def _forget(self, state: PeerState, link: PeerLink) -> None:
        if state.link is link:
            state.past_traffic = state.traffic
            state.link, state.since_ms = None, self._environment.clock_ms()
            state.has_stopped = STOPPING in link.hello.capabilities
            self._rivals.note_loss(state, link.hello.origin)
            if link.observer is not None:
                link.observer.ended(link)
                link.observer = None
            self._owner.link_down(link)

    def _note_end(self, sid: str | None, errors: BaseExceptionGroup[BaseException]) -> None:
        # LinkDownError is only a consequence of the error that ended the link.
        causes = [error for error in leaves(errors) if not isinstance(error, LinkDownError)]
        reason = "; ".join(sorted({_reason(error) for error in causes})) or "the connection broke"
        state = self.peers.get(sid) if sid is not None else None
        if state is None and sid is not None:
            log.info("the last link to %s is down: %s", sid, reason)
        elif state is None:
            if reason not in self._reasons:
                if len(self._reasons) >= MAX_REASONS:
                    self._reasons.clear()
                self._reasons.add(reason)
                log.warning("a connection ended before its HELLO was accepted: %s", reason)
        elif state.link is None and state.error != reason:
            said_so = state.has_stopped and state.error is None  # however the link then ended
            state.error = f"{sid} has stopped" if said_so else reason
            starting = state.since_ms is None or state.has_stopped
            expected = said_so or (starting and all(isinstance(error, OSError) for error in causes))
            log.log(logging.INFO if expected else logging.WARNING, "link to %s is down: %s", sid, state.error)

    async def _expect_call(self, state: PeerState) -> None:
        """Warn of a peer with a lower SID that has not dialled this node in time."""
        await trio.sleep(2 * self._config.mastership.timeout_s)  # this node may be the first of several to start
        if state.since_ms is None and state.error is None:
            sid = state.config.id
            state.error = (
                f"it has not connected, and of two nodes the one with the lower id dials; check that {sid} is"
                f" running under this id, and that its [[peer]] {self._config.node.id} has this node's address"
            )
            log.warning("no link to %s: %s", sid, state.error)


# Errors that end one link and nothing else: of the connection, of the peer's data, and of this node's disk.
_LINK_ERRORS = (LinkRefusedError, LinkDownError, ProtocolError, HistoryError, MailError, OSError,
                trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)  # fmt: skip


def _reason(error: BaseException) -> str:
    if isinstance(error, trio.TooSlowError):
        return "no answer in time"
    if isinstance(error, trio.BrokenResourceError):
        return str(error) or "the connection broke"
    return str(error) or type(error).__name__
