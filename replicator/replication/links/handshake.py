"""Exchanges HELLOs, and decides if what a peer says in its own fits this node.

A HELLO is refused for another cluster, this node's own SID, a SID that is not configured, another version, differing
policies, and a clock that is too far off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from master_election.number_bounds import MAX_CLOCK_DIFFERENCE_MS
from protocol.commands import PROTOCOL_VERSION, Hello, RefusalCode, Refused
from protocol.stream_codec import Decoder, Encoder, ProtocolError, Request, Response
from protocol.values import sid_of
from replicator.config import Address, Config, PeerConfig
from replicator.replication.links.object_entries import capability
from replicator.runtime.environment import Environment

ZSTD = "ZSTD"
ENTRIES = "ENTRIES"
"""The capability of a node that takes in entries in batches."""
LONG_ENTRIES = "LONG-ENTRIES"
"""The capability of a node that takes in a long batch of one entry that brings many messages."""
BODIES = "BODIES"
"""The capability of a node that answers requests for many bodies at once."""
CHECKPOINTS = "CHECKPOINTS"
"""The capability of a node that answers requests for checkpoints of many mailboxes at once."""
RAISE = "RAISE"
"""The capability of a node that takes in raised numbers, and gives messages the UIDs that they have elsewhere."""
BLOCKS = "BLOCKS"
"""The capability of a node whose end of a connection has no TLS: it reads and writes blocks with checksums there."""
REBUILDING = "REBUILDING"
"""The capability of a node that is replacing a damaged database: other such nodes must not rely on its data."""
STOPPING = "STOPPING"
"""The capability of a node in its last HELLO on a link: it has been told to stop."""

Certify = Callable[[trio.abc.Stream], tuple[str, frozenset[str]] | None]
"""Stream -> the peer's address and the names in its certificate; None if the stream has no TLS."""


_TLS_BEGINS = (b"\x16\x03", b"\x15\x03")
"""Content type handshake or alert, and the version (RFC 8446 section 5.1)."""


class LinkRefusedError(Exception):
    """One side refuses the link, or ends it in order. The text is for the operator."""


class HelloRefusedError(LinkRefusedError):
    """This node refuses the peer's HELLO. The peer is sent the code and the text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class RefusedByPeerError(LinkRefusedError):
    """The peer refuses this node's HELLO. `said` is the peer's own text."""

    def __init__(self, sid: str, code: str, said: str) -> None:
        super().__init__(f"{sid} refuses the link: {said}")
        self.code = code
        self.said = said


class HelloTooLongError(LinkRefusedError):
    """The connection has sent more than it may before its HELLO is accepted."""


class Handshake:
    """The HELLO of this run of the node, `origin`, and the rules for the HELLOs of its `peers`, as they are now."""

    def __init__(
        self,
        config: Config,
        origin: str,
        environment: Environment,
        *,
        peers: Callable[[], Iterable[PeerConfig]],
        certify: Certify,
        capabilities: Callable[[], tuple[str, ...]],
    ) -> None:
        self._config = config
        self._origin = origin
        self._environment = environment
        self._certify = certify
        self._capabilities = capabilities
        self._peers = peers

    def hello(self, stream: trio.abc.Stream | None = None) -> Hello:
        """Return this node's HELLO as of now; with what the connection itself needs, if this is its first."""
        node = self._config.node
        policies = (
            f"SCOPE={self._config.mastership.scope}",
            f"CONFLICT={self._config.conflict.uid}",
        )
        abilities = (
            *policies,
            ENTRIES,
            LONG_ENTRIES,
            BODIES,
            CHECKPOINTS,
            RAISE,
            *capability(self._config.checkpoint),
            *self._capabilities(),
        )
        if stream is not None and self._certify(stream) is None:
            abilities = (*abilities, BLOCKS)
        capabilities = abilities if self._is_local() else (*abilities, ZSTD)
        clock_ms = self._environment.clock_ms()
        return Hello(PROTOCOL_VERSION, node.id, self._origin, node.cluster, capabilities, clock_ms)

    def _is_local(self) -> bool:
        """Return True if all peers are on this machine, where compression only costs time.

        A socket in the file system may be a tunnel's, and lead anywhere.
        """
        addresses = [peer.address for peer in self._peers()]
        return all(isinstance(address, Address) and address.is_loopback for address in addresses)

    async def ask(self, stream: trio.abc.Stream, sid: str, encoder: Encoder, decoder: Decoder) -> Hello:
        """Send this node's HELLO to the peer `sid`, and return the answer. Raises RefusedByPeerError."""
        await stream.send_all(encoder.request("hello", self.hello(stream)))
        match await self._first_item(stream, decoder):
            case Response("hello", Hello() as hello):
                return hello
            case Response("hello", Refused(code, text)):
                raise RefusedByPeerError(sid, code, text)
            case _:
                raise ProtocolError("expected a HELLO")

    async def expect(self, stream: trio.abc.Stream, decoder: Decoder) -> tuple[str, Hello]:
        """Return the tag and the HELLO with which a peer begins."""
        match await self._first_item(stream, decoder):
            case Request(str(tag), Hello() as hello):
                return tag, hello
            case _:
                raise ProtocolError("expected a HELLO")

    def agree(self, hello: Hello, stream: trio.abc.Stream, encoder: Encoder, decoder: Decoder) -> None:
        """Switch both directions to what both sides offer: blocks and compression."""
        shared = set(hello.capabilities) & set(self.hello(stream).capabilities)
        if BLOCKS in shared:
            encoder.start_blocks()
            decoder.start_blocks()
        if ZSTD in shared:
            encoder.start_compression()
            decoder.start_decompression()

    def check(self, hello: Hello, stream: trio.abc.Stream, *, expected: str | None = None) -> None:
        """Check a peer's HELLO and certificate; `expected` is the SID that was dialled. Raises HelloRefusedError."""
        ours, difference = self.hello(), hello.clock_ms - self._environment.clock_ms()
        if hello.version != ours.version:
            raise HelloRefusedError(
                RefusalCode.VERSION,
                f"{hello.sid} speaks protocol version {hello.version}, and {ours.sid} speaks {ours.version}",
            )
        if hello.cluster != ours.cluster:
            raise HelloRefusedError(
                RefusalCode.CLUSTER,
                f"{hello.sid} belongs to cluster {hello.cluster!r}, and {ours.sid} to {ours.cluster!r}",
            )
        if hello.sid == ours.sid:
            raise HelloRefusedError(
                RefusalCode.SAME_SID, f"both nodes have the id {ours.sid!r}; give each its own `node.id`"
            )
        if sid_of(hello.origin) != hello.sid:
            raise HelloRefusedError(
                RefusalCode.UNKNOWN_SID, f"the origin {hello.origin!r} does not belong to node {hello.sid!r}"
            )
        if all(peer.id != hello.sid for peer in self._peers()) or (expected is not None and hello.sid != expected):
            raise HelloRefusedError(
                RefusalCode.UNKNOWN_SID, f"node {hello.sid!r} is not the [[peer]] that {ours.sid!r} expects"
            )
        self._check_certificate(hello, stream)
        _check_policies(hello, ours)
        if abs(difference) > MAX_CLOCK_DIFFERENCE_MS:
            raise HelloRefusedError(
                RefusalCode.CLOCK,
                f"the clocks are {abs(difference) / 1000:.0f} s apart: {hello.sid} has {hello.clock_ms} ms,"
                f" {ours.sid} {ours.clock_ms} ms since the epoch; synchronize them by NTP",
            )

    async def _first_item(self, stream: trio.abc.Stream, decoder: Decoder) -> Request | Response:
        """Read the first command or reply. Whatever the other side says about lengths, it is held to a few bytes."""
        limit = room = self._config.limits.peer_hello_bytes
        while room:
            data = await stream.receive_some(room)
            if not data:
                hint = "" if self._certify(stream) else "; if the other node has [tls], this one needs it too"
                raise LinkRefusedError(f"the connection was closed before HELLO{hint}")
            if room == limit and data.startswith(_TLS_BEGINS):
                raise LinkRefusedError("the other side speaks TLS, and this node has no [tls] with a ca")
            room -= len(data)
            for item in decoder.feed(bytes(data)):
                if isinstance(item, Request | Response):
                    return item
        raise HelloTooLongError(f"more than {limit} bytes came before a HELLO that is accepted")

    def _check_certificate(self, hello: Hello, stream: trio.abc.Stream) -> None:
        certified = self._certify(stream)
        if certified is not None and hello.sid not in certified[1]:
            names = ", ".join(sorted(certified[1])) or "nobody"
            raise HelloRefusedError(
                RefusalCode.UNKNOWN_SID,
                f"the certificate of {certified[0]} names {names}, and {hello.sid} was expected; the common name or a"
                " DNS name of a node's certificate must be its node.id",
            )


def _check_policies(hello: Hello, ours: Hello) -> None:
    """Check that both nodes have the same policies. Raises HelloRefusedError."""
    if theirs := _other_policies(hello.capabilities, ours.capabilities):
        known = _other_policies(ours.capabilities, hello.capabilities)
        raise HelloRefusedError(
            RefusalCode.POLICY,
            f"{hello.sid} has {theirs}, and {ours.sid} has {known};"
            " `mastership.scope` and `conflict.uid` must be the same at all nodes",
        )


def _other_policies(theirs: tuple[str, ...], ours: tuple[str, ...]) -> str:
    """Return, as text, the policies in `theirs` that have another value in `ours`."""
    known, named = _policies(ours), _policies(theirs)
    return ", ".join(f"{name}={value}" for name, value in named.items() if known.get(name, value) != value)


def _policies(capabilities: tuple[str, ...]) -> dict[str, str]:
    """Return the capabilities of the form `NAME=value` as a mapping."""
    return dict(ability.split("=", 1) for ability in capabilities if "=" in ability)
