"""A master that says what a test wants, over a stream in memory: a Dovecot would never say most of it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
import trio.testing

from replicator.dsync.conversation.peer import Peer
from replicator.dsync.replica import OpenReplica
from replicator.dsync.wire.items import (
    Attribute,
    Deletions,
    Finish,
    Handshake,
    Mail,
    Mailbox,
    MailboxState,
    MailChange,
    MailRequest,
    TreeNode,
)
from replicator.dsync.wire.keys import KINDS
from replicator.dsync.wire.values import encode_record
from tests.dsync.dovecot import PASSWORD
from tests.dsync.sides import USER, served

MOST = 1_000_000
StreamPair = tuple[trio.abc.HalfCloseableStream, trio.abc.HalfCloseableStream]
TEXT = b"Subject: scripted\r\n\r\n"


@dataclass
class Answers:
    """The door's answer about one mailbox; nothing but `own` if it refuses to sync it."""

    own: Mailbox
    changes: Sequence[MailChange] = field(default_factory=list)
    requests: Sequence[MailRequest] = field(default_factory=list)
    state: MailboxState | None = None


class ScriptedMaster:
    """One conversation, after the hello. `told`: what the door has said of its deletions."""

    def __init__(self, stream: trio.abc.Stream, peer: Peer) -> None:
        self.stream = stream
        self.peer = peer
        self.told = Deletions()

    async def folders(self, nodes: Iterable[TreeNode], deletions: Deletions | None = None) -> list[TreeNode]:
        """Exchange folders, and return the door's."""
        await self.peer.one(Handshake)
        for node in nodes:
            await self.peer.send(node)
        await self.peer.end_list()
        await self.peer.send(deletions or Deletions())
        found = await self.peer.all(TreeNode, MOST)
        self.told = await self.peer.one(Deletions)
        return found

    async def mailbox(
        self,
        numbers: Mailbox,
        changes: Iterable[MailChange] = (),
        mails: Mapping[str, Mail] | None = None,
        *,
        backwards: bool = False,
    ) -> Answers:
        """Sync a mailbox. `mails`: what is said of a mail that is asked for, by GUID; its text is always the same.

        `backwards`: mails come in the order of descending UIDs.
        """
        peer = self.peer
        await peer.send(numbers)
        own = await peer.one(Mailbox)
        if own.lost or own.ignored:
            return Answers(own)
        await peer.end_list()
        for change in changes:
            await peer.send(change)
        await peer.end_list()
        await peer.all(Attribute, MOST)
        theirs = await peer.all(MailChange, MOST)
        await peer.end_list()
        requests = await peer.all(MailRequest, MOST)
        for request in sorted(requests, key=lambda one: one.uid, reverse=backwards):
            await peer.send((mails or {}).get(request.guid, Mail(request.guid, request.uid, 1, 1)))
            await peer.send_text(_text())
        await peer.end_list()
        await peer.all(Mail, MOST)
        await peer.send(MailboxState(numbers.mailbox_id, numbers.uidvalidity, 0, 0))
        return Answers(own, theirs, requests, await peer.one(MailboxState))

    async def finish(self) -> Finish:
        """Say that there are no more mailboxes, and return what the door says of it."""
        await self.peer.end_list()
        return await self.peer.one(Finish)


async def _text() -> AsyncIterator[bytes]:
    yield TEXT


@asynccontextmanager
async def scripted_master(
    replica_of: OpenReplica, streams: Callable[[], StreamPair] = trio.testing.memory_stream_pair, **wish: str
) -> AsyncIterator[ScriptedMaster]:
    """Begin a sync. `streams` makes the two ends of the connection; `wish`: values of the handshake."""
    ours, theirs = streams()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served(replica_of), theirs)
        login = b64encode(b"\0doveadm\0" + PASSWORD.encode())
        await ours.send_all(b"VERSION\tdoveadm-server\t1\t0\nPLAIN\t%b\n\t%b\tdsync-server\n" % (login, USER.encode()))
        received = b""
        while b"\n\n+\n" not in received:
            data = bytes(await ours.receive_some())
            assert data, received
            received += data
        peer = Peer(ours, received.partition(b"\n\n+\n")[2])
        await peer.greet()
        values = {"hostname": "vm", "sync_type": "c", **wish}
        await peer.flush()
        record = encode_record(values.get(name) for name in KINDS["H"].names)
        await ours.send_all(f"H{record}\n".encode())
        try:
            yield ScriptedMaster(ours, peer)
        finally:
            await ours.aclose()
