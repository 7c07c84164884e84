"""Establishes links: accepting and dialling connections, the HELLO of either side, and redialling.

Of two nodes the one with the lower SID dials, so there is one link between them. When the same run of a peer dials
again, the new link replaces the old one, since the peer knows best that the old one is dead. HELLO is refused for
another cluster, this node's own SID, a SID that is not configured, another version, differing policies, a clock that
is too far off, and while the peer runs under another origin (design section 5). A node that a peer with a lower SID has
not dialled sends that peer a HELLO only to ask if it is refused there.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import trio

from master_election.number_bounds import MAX_CLOCK_DIFFERENCE_MS
from protocol.commands import PROTOCOL_VERSION, Hello, Ping, RefusalCode, Refused
from protocol.stream_codec import Decoder, Encoder, ProtocolError, Request, Response
from protocol.values import is_older, sid_of
from replicator.config import Config, PeerConfig
from replicator.environment import Environment
from replicator.errors import HistoryError, MailError, RunsTwiceError, leaves
from replicator.replication.links.link import LinkDownError, LinkHandler, PeerLink
from replicator.replication.links.object_entries import capability, warn_of_another

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0
FIRST_RETRY_S, MAX_RETRY_S = 0.2, 10.0
MAX_REASONS = 64  # that are remembered, so that each is logged once
MAX_HANDSHAKES = 64  # connections that have not said HELLO yet
GRACE_S = 0.5  # added to `mastership.timeout`, for a link that ends exactly then
LOOK_AGAIN_S = 0.05  # between checks if another run of a peer is gone
HOW_TO_PART = "end one of the two; a copy needs a `node.id` and a `node.data` of its own"
ZSTD = "ZSTD"
REBUILDING = "REBUILDING"
"""The capability of a node that is replacing a damaged database: other such nodes must not rely on its data."""

Dial = Callable[[PeerConfig], Awaitable[trio.abc.Stream]]
Certify = Callable[[trio.abc.Stream], frozenset[str] | None]
"""Stream -> the names in its certificate; None if there is no certificate and none is required."""


class LinkRefusedError(Exception):
    """One side refuses the link. The text is for the operator."""


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


@dataclass(slots=True)
class TurnedAway:
    """A run of a peer that was refused because another run is known, and the time span of continuous refusals.

    `since` and `until` are in seconds of the event loop's clock.
    """

    origin: str
    since: float
    until: float


@dataclass(slots=True)
class PeerState:
    """State of the link to one configured peer."""

    config: PeerConfig
    link: PeerLink | None = None
    since_ms: int | None = None
    error: str | None = None
    lost: tuple[str, float] | None = None  # origin of the previous link, and the time when that link ended
    turned_away: TurnedAway | None = None


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
    ) -> None:
        self._config = config
        self._capabilities = capabilities
        self._origin = origin
        self._environment = environment
        self._owner = owner
        self._dial = dial
        self._certify = certify
        self._run_of = run_of
        self._gives_way = trio.Event()
        self._why = ""
        self._greeting: dict[int, trio.CancelScope] = {}  # connections before their HELLO, the oldest first
        self._greeted = 0
        self._strangers: set[str] = set()  # why connections from unknown peers ended: each reason is logged once
        self.peers = {peer.id: PeerState(peer) for peer in config.peers}

    @property
    def links(self) -> list[PeerLink]:
        """The links that are up."""
        return [state.link for state in self.peers.values() if state.link is not None]

    def link(self, sid: str | None) -> PeerLink | None:
        """Return the link to a neighbour, if it is up."""
        state = self.peers.get(sid) if sid is not None else None
        return state.link if state else None

    async def run(self) -> None:
        """Dial the peers with a higher SID, and ask the others if this node is refused, until cancelled.

        Raises RunsTwiceError when another process runs as this node and this one has to end.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expect_calls)
            for state in self.peers.values():
                dials = self._config.node.id < state.config.id
                nursery.start_soon(self._keep_dialling if dials else self._keep_asking, state)
            await self._gives_way.wait()
            raise RunsTwiceError(self._why)

    def drop_links(self) -> None:
        """End all links at once. They are redialled as usual."""
        for state in self.peers.values():
            if state.link is not None:
                self._drop(state, state.link)

    def give_way(self, why: str) -> None:
        """End this process, because another one that runs as this node stays."""
        self._why = self._why or why
        self._gives_way.set()

    async def accept(self, stream: trio.abc.Stream) -> None:
        """Serve a connection that a peer has made. Return when it ends."""
        sid = None
        try:
            link = await self._welcome_in_turn(stream)
            sid = link.sid
            await self._serve(link)
        except* _OnlyAskedError:
            pass
        except* _LINK_ERRORS as errors:
            self._note_end(sid, errors)
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _welcome_in_turn(self, stream: trio.abc.Stream) -> PeerLink:
        """Await the HELLO of a connection; if too many connections are silent, drop the oldest one.

        So unknown clients that connect and stay silent cannot keep peers out.
        """
        self._greeted += 1
        number = self._greeted
        with trio.CancelScope() as scope:
            self._greeting[number] = scope
            if len(self._greeting) > MAX_HANDSHAKES:
                next(iter(self._greeting.values())).cancel()
            try:
                return await self._welcome(stream)
            finally:
                del self._greeting[number]
        raise LinkRefusedError("too many connections had not said HELLO")

    # ---- dialling

    async def _keep_dialling(self, state: PeerState) -> None:
        # A peer that starts waits `timeout_s` for the other nodes before it numbers: they must have dialled by then.
        longest = min(MAX_RETRY_S, self._config.mastership.timeout_s / 2)
        delay = FIRST_RETRY_S
        while True:
            began = trio.current_time()
            try:
                await self._dial_once(state)
            except* _LINK_ERRORS as errors:
                self._note_end(state.config.id, errors)
            except* Exception:
                # The one place where a defect that a peer triggers ends the peer's link and not this node.
                log.exception("the link to %s ended because of a defect in this program", state.config.id)
            if trio.current_time() - began > longest:
                delay = FIRST_RETRY_S
            await trio.sleep(delay * self._environment.random.uniform(0.5, 1.0))
            delay = min(2 * delay, longest)

    async def _dial_once(self, state: PeerState) -> None:
        async with self._called(state.config) as stream:
            with trio.fail_after(HANDSHAKE_TIMEOUT_S):
                link = await self._greet(stream, state.config)
            await self._serve(link)

    @asynccontextmanager
    async def _called(self, peer: PeerConfig) -> AsyncIterator[trio.abc.Stream]:
        """Open a connection to the peer. Raises TooSlowError, and any error of the connection."""
        with trio.fail_after(HANDSHAKE_TIMEOUT_S):
            stream = await self._dial(peer)
        try:
            yield stream
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _keep_asking(self, state: PeerState) -> None:
        """Ask a peer that does not dial whether it is linked to another run of this node."""
        while True:
            if state.link is None:  # also at the start, before a copy of the node serves clients
                try:
                    async with self._called(state.config) as stream:
                        with trio.fail_after(HANDSHAKE_TIMEOUT_S):
                            await self._exchange_hellos(stream, state.config, Encoder(), Decoder())
                except* _LINK_ERRORS as errors:
                    log.debug("%s does not call, nor answer: %s", state.config.id, leaves(errors)[0])
            await trio.sleep(self._config.mastership.timeout_s / 2)

    async def _greet(self, stream: trio.abc.Stream, peer: PeerConfig) -> PeerLink:
        """Exchange HELLOs as the dialling side."""
        encoder, decoder = Encoder(), Decoder()
        hello = await self._exchange_hellos(stream, peer, encoder, decoder)
        self._check(hello, peer.id, self._certify(stream))
        await self._refuse_rival(hello)
        self._compress(hello, encoder, decoder)
        return PeerLink(stream, hello, encoder, decoder)

    async def _exchange_hellos(
        self, stream: trio.abc.Stream, peer: PeerConfig, encoder: Encoder, decoder: Decoder
    ) -> Hello:
        """Send this node's HELLO and return the peer's.

        Raises LinkRefusedError if the peer refuses the link; makes this node end if the refusal requires that.
        """
        await stream.send_all(encoder.request("hello", self.hello()))
        match await _first_item(stream, decoder):
            case Response("hello", Hello() as hello):
                return hello
            case Response("hello", Refused(code, text)):
                # A run with links is in another part of the cluster than the newer run, which ends when the parts meet.
                if code == RefusalCode.RUNS_TWICE or (code == RefusalCode.REPLACED and not self.links):
                    self.give_way(f"{peer.id} refuses its link: {text}")
                raise LinkRefusedError(f"{peer.id} refuses the link: {text}")
            case _:
                raise ProtocolError("a HELLO was expected")

    async def _welcome(self, stream: trio.abc.Stream) -> PeerLink:
        """Exchange HELLOs as the accepting side."""
        encoder, decoder = Encoder(), Decoder()
        with trio.fail_after(HANDSHAKE_TIMEOUT_S):
            match await _first_item(stream, decoder):
                case Request(str(tag), Hello() as hello):
                    pass
                case _:
                    raise ProtocolError("a HELLO was expected")
            try:
                self._check(hello, None, self._certify(stream))
                await self._refuse_rival(hello)
            except LinkRefusedError as error:
                state = self.peers.get(hello.sid)
                if state is not None and state.link is None:
                    state.error = str(error)
                await stream.send_all(encoder.response(tag, Refused(_code_of(error), str(error))))
                raise
            await stream.send_all(encoder.response(tag, self.hello()))
            if hello.sid > self._config.node.id:
                raise _OnlyAskedError
            self._compress(hello, encoder, decoder)
            # The peer may refuse this node's HELLO: a link that the peer ends at once must not begin a term.
            first = await stream.receive_some()
        if not first:
            raise LinkRefusedError(f"{hello.sid} has refused our HELLO; its log says why")
        decoder.feed(bytes(first))
        return PeerLink(stream, hello, encoder, decoder)

    def hello(self) -> Hello:
        """Return this node's HELLO as of now."""
        node = self._config.node
        policies = (
            f"SCOPE={self._config.mastership.scope}",
            f"CONFLICT={self._config.conflict.uid}",
        )
        abilities = (*policies, *capability(self._config.checkpoint), *self._capabilities())
        capabilities = abilities if self._is_local() else (*abilities, ZSTD)
        clock_ms = self._environment.clock_ms()
        return Hello(PROTOCOL_VERSION, node.id, self._origin, node.cluster, capabilities, clock_ms)

    def _compress(self, hello: Hello, encoder: Encoder, decoder: Decoder) -> None:
        """Compress both directions, if both sides offer it."""
        if ZSTD in hello.capabilities and ZSTD in self.hello().capabilities:
            encoder.start_compression()
            decoder.start_decompression()

    def _is_local(self) -> bool:
        """Return True if all peers are on this machine, where compression only costs time."""
        return all(state.config.address.is_loopback for state in self.peers.values())

    def _check(self, hello: Hello, expected: str | None, certified: frozenset[str] | None) -> None:
        """Check the peer's HELLO and certificate. Raises LinkRefusedError."""
        ours, difference = self.hello(), hello.clock_ms - self._environment.clock_ms()
        if hello.version != ours.version:
            raise _refused(RefusalCode.VERSION, f"protocol version {hello.version}; this node speaks {ours.version}")
        if hello.cluster != ours.cluster:
            raise _refused(RefusalCode.CLUSTER, f"cluster {hello.cluster!r}; this node is of {ours.cluster!r}")
        if hello.sid == ours.sid:
            raise _refused(RefusalCode.SAME_SID, f"both nodes have the id {ours.sid!r}; give each its own `node.id`")
        if sid_of(hello.origin) != hello.sid:
            raise _refused(RefusalCode.UNKNOWN_SID, f"the origin {hello.origin!r} is none of node {hello.sid!r}")
        if hello.sid not in self.peers or (expected is not None and hello.sid != expected):
            raise _refused(RefusalCode.UNKNOWN_SID, f"node {hello.sid!r} is not the [[peer]] that {ours.sid!r} expects")
        if certified is not None and hello.sid not in certified:
            names = ", ".join(sorted(certified)) or "nobody"
            raise _refused(
                RefusalCode.UNKNOWN_SID,
                f"node {hello.sid!r} has a certificate of {names}; its node.id must be its common name or a DNS name",
            )
        self._check_policies(hello, ours)
        if abs(difference) > MAX_CLOCK_DIFFERENCE_MS:
            raise _refused(
                RefusalCode.CLOCK,
                f"the clocks are {abs(difference) / 1000:.0f} s apart: {hello.sid} has {hello.clock_ms} ms,"
                f" {ours.sid} {ours.clock_ms} ms since the epoch; set them by NTP",
            )

    def _check_policies(self, hello: Hello, ours: Hello) -> None:
        """Check that both nodes have the same policies. Raises LinkRefusedError."""
        if theirs := _other_policies(hello.capabilities, ours.capabilities):
            known = _other_policies(ours.capabilities, hello.capabilities)
            raise _refused(
                RefusalCode.POLICY,
                f"{hello.sid} has {theirs}, and {ours.sid} has {known};"
                " `mastership.scope` and `conflict.uid` must be the same at all nodes",
            )

    # ---- one node, two processes

    async def _refuse_rival(self, hello: Hello) -> None:
        """Return when the peer is not known to run under another origin than that of its HELLO.

        Raises LinkRefusedError if it does. The code is RUNS-TWICE or REPLACED, which may end the refused run, only if
        there is no doubt.
        """
        state, timeout_s = self.peers[hello.sid], self._config.mastership.timeout_s
        with trio.move_on_after(min(timeout_s + GRACE_S, HANDSHAKE_TIMEOUT_S / 2)):
            while (rival := self._rival(state, hello.origin)) is not None:
                if state.link is not None and await _answers(state.link):
                    raise self._runs_twice(hello, rival, "is linked to")
                await trio.sleep(LOOK_AGAIN_S)
        if (rival := self._rival(state, hello.origin)) is None:
            return
        # Silent links end, and all nodes hear of that: a run that is gone does not stay reachable for so long.
        is_certain = self._turn_away(state, hello.origin) > 2 * timeout_s and state.link is None
        raise self._runs_twice(hello, rival, "can be reached from", is_certain=is_certain)

    def _turn_away(self, state: PeerState, origin: str) -> float:
        """Note a refusal of this run of the peer; return for how many seconds it has been refused without a pause."""
        now, before = trio.current_time(), state.turned_away
        pause_s = HANDSHAKE_TIMEOUT_S + 2 * self._config.mastership.timeout_s  # longest time between two calls
        if before is None or before.origin != origin or now - before.until > pause_s:
            before = state.turned_away = TurnedAway(origin, now, now)
        before.until = now
        return now - before.since

    def _rival(self, state: PeerState, origin: str) -> str | None:
        """Return the other origin under which a peer is known: of a run that is linked, or reachable over other nodes.

        None if there is no other run, or if the link of this run broke only just now.
        """
        if state.lost is not None and state.lost[0] == origin and self._is_recent(state.lost[1]):
            return None
        known = state.link.hello.origin if state.link is not None else self._run_of(state.config.id)
        return known if known != origin else None

    def _is_recent(self, moment: float) -> bool:
        return trio.current_time() - moment < self._config.mastership.timeout_s

    def _runs_twice(self, hello: Hello, rival: str, how: str, *, is_certain: bool = True) -> LinkRefusedError:
        code = RefusalCode.REPLACED if is_older(hello.origin, rival) else RefusalCode.RUNS_TWICE
        us = self._config.node.id
        text = f"{hello.sid} runs already, as {rival}, which {how} {us}; this one is {hello.origin}; {HOW_TO_PART}"
        return _refused(code if is_certain else RefusalCode.UNAVAILABLE, text)

    # ---- serving

    async def _serve(self, link: PeerLink) -> None:
        state = self.peers[link.sid]
        if state.link is not None:
            if self._rival(state, link.hello.origin) is not None:
                raise LinkRefusedError(f"{link.sid} is linked since its HELLO as {state.link.hello.origin}")
            self._drop(state, state.link)
        state.link, state.error, state.since_ms = link, None, self._environment.clock_ms()
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
            state.link, state.since_ms = None, self._environment.clock_ms()
            origin, lost = link.hello.origin, state.lost
            if lost is None or lost[0] == origin or not self._is_recent(lost[1]):
                state.lost = origin, trio.current_time()
            self._owner.link_down(link)

    def _note_end(self, sid: str | None, errors: BaseExceptionGroup[BaseException]) -> None:
        # LinkDownError is only a consequence of the error that ended the link.
        causes = [error for error in leaves(errors) if not isinstance(error, LinkDownError)]
        reason = "; ".join(sorted({_reason(error) for error in causes})) or "the connection broke"
        state = self.peers.get(sid) if sid is not None else None
        if state is None:
            if reason not in self._strangers:
                if len(self._strangers) >= MAX_REASONS:
                    self._strangers.clear()
                self._strangers.add(reason)
                log.warning("a connection ended before its HELLO was accepted: %s", reason)
        elif state.link is None and state.error != reason:
            state.error = reason
            starting = state.since_ms is None and all(isinstance(error, OSError) for error in causes)
            log.log(logging.INFO if starting else logging.WARNING, "link to %s is down: %s", sid, reason)

    async def _expect_calls(self) -> None:
        """Warn of peers with a lower SID that have not dialled this node in time."""
        await trio.sleep(self._config.mastership.timeout_s)
        for sid, state in self.peers.items():
            if state.since_ms is None and sid < self._config.node.id and state.error is None:
                state.error = (
                    "it has not called: of two nodes the one with the lower id dials;"
                    f" does {sid} run, under that id, and has its [[peer]] {self._config.node.id} this node's address?"
                )
                log.warning("no link to %s: %s", sid, state.error)


# Errors that end one link and nothing else: of the connection, of the peer's data, and of this node's disk.
_LINK_ERRORS = (LinkRefusedError, LinkDownError, ProtocolError, HistoryError, MailError, OSError, sqlite3.Error,
                trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)  # fmt: skip


class _CodedRefusalError(LinkRefusedError):
    """This node's refusal, with the code that is sent to the peer."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def _refused(code: str, text: str) -> LinkRefusedError:
    return _CodedRefusalError(code, text)


def _code_of(error: LinkRefusedError) -> str:
    return error.code if isinstance(error, _CodedRefusalError) else RefusalCode.UNAVAILABLE


def _policies(capabilities: tuple[str, ...]) -> dict[str, str]:
    """Return the capabilities of the form `NAME=value` as a mapping."""
    return dict(ability.split("=", 1) for ability in capabilities if "=" in ability)


def _other_policies(theirs: tuple[str, ...], ours: tuple[str, ...]) -> str:
    """Return, as text, the policies in `theirs` that have another value in `ours`."""
    known, named = _policies(ours), _policies(theirs)
    return ", ".join(f"{name}={value}" for name, value in named.items() if known.get(name, value) != value)


async def _answers(link: PeerLink) -> bool:
    """Return True if the peer answers a PING, False if the link has ended."""
    try:
        await link.request(Ping())
    except LinkDownError:
        return False
    return True


async def _first_item(stream: trio.abc.Stream, decoder: Decoder) -> Request | Response:
    while True:
        data = await stream.receive_some()
        if not data:
            raise LinkRefusedError("the connection was closed before HELLO")
        for item in decoder.feed(bytes(data)):
            if isinstance(item, Request | Response):
                return item


def _reason(error: BaseException) -> str:
    if isinstance(error, trio.TooSlowError):
        return "no answer in time"
    return str(error) or type(error).__name__
