"""A peer that the test plays, byte for byte."""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from typing import TypeVar

import trio

from protocol.commands import (
    PROTOCOL_VERSION,
    Command,
    Done,
    EntryCommand,
    EntryHeader,
    Hello,
    Links,
    Log,
    Mbox,
    Ping,
    RefusalCode,
    Refused,
    Reply,
    SyncNode,
    Text,
)
from protocol.stream_codec import Decoder, Encoder, Item, ProtocolError, Request, Response
from protocol.values import Dot
from replicator.replication.links.entry_codec import EntryAssembler
from replicator.store.db.queries import MailboxKey
from resync.entry import DIGEST_BYTES, Entry
from tests.replication.cluster import EPOCH_MS, Cluster

T = TypeVar("T")

ORIGIN = "dc1.stranger"
INBOX = MailboxKey("alice", b"i" * 16, 1_700_000_000)


class Stranger:
    """A peer that says to dc2 that it is dc1."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.encoder = Encoder()
        self._decoder = Decoder()
        self._items: list[Item] = []
        self.answers_log = True
        self._keys: dict[int, MailboxKey] = {}

    async def send(self, command: Command, tag: str | None = None) -> None:
        """Send a command. An entry of one change gets its digest."""
        if isinstance(command, Mbox):
            self._keys[command.number] = MailboxKey.of(command)
        if isinstance(command, EntryCommand):
            (command,) = sealed([command], self._keys)
        await self.stream.send_all(self.encoder.request(tag, command))

    async def reply(self, tag: str, reply: Reply) -> None:
        await self.stream.send_all(self.encoder.response(tag, reply))

    async def next(self) -> Item | None:
        """Return the next item, or None at the end of the connection. Answers PING, LOG and SYNC itself."""
        while True:
            while not self._items:
                data = await self.stream.receive_some()
                if not data:
                    return None
                self._items = list(self._decoder.feed(bytes(data)))
            match self._items.pop(0):
                case Request(str(tag), Ping()):
                    await self.reply(tag, Done())
                case Request(str(tag), Log()) if self.answers_log:
                    await self.reply(tag, Done())
                case Request(str(tag), SyncNode()):
                    await self.reply(tag, Refused(RefusalCode.UNAVAILABLE, "a stranger shows nothing"))
                case item:
                    return item

    async def next_command(self, kind: type[T]) -> T:
        """Return the next command or reply of this kind, and skip all others."""
        with trio.fail_after(60):
            while (item := await self.next()) is not None:
                found = (
                    item.command if isinstance(item, Request) else item.reply if isinstance(item, Response) else None
                )
                if isinstance(found, kind):
                    return found
        raise AssertionError(f"the connection ended before a {kind.__name__}")

    async def next_log(self) -> Log:
        """Return the node's next LOG, and answer it."""
        with trio.fail_after(60):
            while (item := await self.next()) is not None:
                match item:
                    case Request(str(tag), Log() as log):
                        await self.reply(tag, Done())
                        return log
        raise AssertionError("the connection ended before a LOG")

    async def ended(self) -> bool:
        """Read on until the node ends the connection; return False if it does not."""
        with trio.move_on_after(15):
            try:
                while await self.next() is not None:
                    pass
            except trio.BrokenResourceError:
                pass
            return True
        return False

    async def greet(self, **changes: object) -> Item | None:
        """Send HELLO and return what comes next."""
        await self.send(replace(HELLO, **changes), "hello")  # type: ignore[arg-type]
        return await self.next()

    async def send_entry(self, seq: int, *commands: EntryCommand, after: int | None = None) -> None:
        """Send an entry of these changes, each with its header. Its mailbox is number 1."""
        headed = [replace(command, entry=header(seq, after, at, len(commands))) for at, command in enumerate(commands)]
        for command in sealed(headed, self._keys):
            await self.send(command)

    async def number_mailbox(self) -> None:
        await self.send(Mbox(1, *INBOX_FIELDS))


HELLO = Hello(PROTOCOL_VERSION, "dc1", ORIGIN, "mail", (), EPOCH_MS)
UNSEALED = bytes(DIGEST_BYTES)
INBOX_FIELDS = (INBOX.user, "INBOX", INBOX.mailbox_id, INBOX.uidvalidity)


def header(seq: int, after: int | None = None, change: int = 0, changes: int = 1) -> EntryHeader:
    """Return the header of the stranger's entry `seq`. Its predecessor is entry `seq - 1`, or `after` (0: none)."""
    before = seq - 1 if after is None else after
    predecessors = (Dot(ORIGIN, before),) if before else ()
    return EntryHeader(Dot(ORIGIN, seq), predecessors, (EPOCH_MS + seq) << 16, seq, UNSEALED, change, changes)


def text_of(octets: bytes) -> Text:
    """Return a TEXT with its hash."""
    return Text(sha256(octets).digest(), octets)


def sealed(commands: Sequence[EntryCommand], keys: Mapping[int, MailboxKey]) -> list[EntryCommand]:
    """Return the changes with the digest of their entry, unless they have one or make no entry."""
    headers = [command.entry for command in commands]
    digest, assembler = UNSEALED, EntryAssembler(keys.__getitem__)
    first = headers[0]
    with suppress(ProtocolError, KeyError):
        if first is not None:
            key = assembler._mailbox(commands[0])
            changes = tuple(assembler._change(command) for command in commands)
            digest = Entry(first.dot, first.predecessors, first.time, first.modseq, *key, changes).digest()
    return [
        replace(command, entry=replace(header, digest=digest)) if header and header.digest == UNSEALED else command
        for command, header in zip(commands, headers, strict=True)
    ]


def reasons(records: Iterable[logging.LogRecord]) -> list[str]:
    """Return the node's log messages about connections that ended."""
    messages = [record.getMessage() for record in records]
    return [message for message in messages if message.startswith(("link to dc1 is down", "a connection ended"))]


async def approach(nodes: Cluster) -> Stranger:
    """Connect to dc2, without HELLO."""
    return Stranger(await nodes.network.connect("dc1", "dc2"))


@asynccontextmanager
async def visit(nodes: Cluster) -> AsyncIterator[Stranger]:
    """Yield a stranger with a link to dc2."""
    stranger = await approach(nodes)
    answer = await stranger.greet()
    assert isinstance(answer, Response)
    assert isinstance(answer.reply, Hello)
    await stranger.send(Links(()))  # the dialling side confirms the answer by speaking first
    yield stranger
    await trio.aclose_forcefully(stranger.stream)


__all__ = [
    "HELLO",
    "INBOX",
    "INBOX_FIELDS",
    "ORIGIN",
    "Stranger",
    "approach",
    "header",
    "reasons",
    "sealed",
    "text_of",
    "visit",
]
