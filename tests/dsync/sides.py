"""Two sides of syncs and their users: a Dovecot, and mail in memory or at a node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from typing import Protocol

import trio

from protocol.values import UidSet
from replicator.dsync.door.server import DsyncServer, DsyncServices
from replicator.dsync.node_mail.last_syncs import LastSyncFiles, LastSyncs
from replicator.dsync.node_mail.mail_replica import MailReplicas
from replicator.dsync.replica import OpenReplica
from replicator.dsync.rules.tree import INBOX
from replicator.dsync.users import Syncing
from replicator.mail.dovecot_guids import guid_of
from replicator.mail.mailstore import NewMessage
from tests.dsync.dovecot import PASSWORD, Dovecot
from tests.dsync.memory_replica import MemoryReplica
from tests.one_node import HookedMail, Names

USER = "u1"
HOSTNAME = "zz-test"
"""What the side that is no Dovecot is called in syncs."""

FLAGS = ("\\Seen", "\\Flagged", "\\Answered", "kw1", "kw2")

Shown = list[tuple[int, str, frozenset[str]]]
"""UID, GUID and flags of all mails of INBOX."""


class Side(Protocol):
    """Steps that users take in INBOX."""

    async def shown(self) -> Shown: ...
    async def append(self, text: bytes) -> None: ...
    async def flag(self, uid: int, flag: str, *, is_set: bool) -> None: ...
    async def expunge(self, uid: int) -> None: ...


@dataclass
class DovecotSide:
    dovecot: Dovecot

    async def shown(self) -> Shown:
        mails = await trio.to_thread.run_sync(self.dovecot.mails, USER)
        return [(uid, guid_of(guid).hex(), flags) for uid, guid, flags in mails]

    async def append(self, text: bytes) -> None:
        await trio.to_thread.run_sync(self.dovecot.save, USER, text)

    async def flag(self, uid: int, flag: str, *, is_set: bool) -> None:
        await self._do("flags", "add" if is_set else "remove", "-u", USER, flag, "mailbox", "INBOX", "uid", str(uid))

    async def expunge(self, uid: int) -> None:
        await self._do("expunge", "-u", USER, "mailbox", "INBOX", "uid", str(uid))

    async def _do(self, *words: str) -> None:
        await trio.to_thread.run_sync(partial(self.dovecot.do, *words))


@dataclass
class MemorySide:
    replica: MemoryReplica
    random: Random

    async def shown(self) -> Shown:
        mails = await self.replica.boxes[INBOX].mails()
        return [(mail.uid, mail.guid.hex(), mail.flags) for mail in mails]

    async def append(self, text: bytes) -> None:
        self.replica.boxes[INBOX].append(self.random.randbytes(16), text)

    async def flag(self, uid: int, flag: str, *, is_set: bool) -> None:
        box, one = self.replica.boxes[INBOX], frozenset({flag})
        if (flag in box.stored[uid].flags) != is_set:
            box.flag(uid, **{"added" if is_set else "removed": one})

    async def expunge(self, uid: int) -> None:
        self.replica.boxes[INBOX].remove(uid)


@dataclass
class NodeSide:
    mail: HookedMail

    async def shown(self) -> Shown:
        view = await self.mail.open_mailbox(await self.mail.folder(USER, "INBOX"))
        return [(message.uid, message.guid.hex(), message.flags) for message in view.messages.values()]

    async def append(self, text: bytes) -> None:
        await self.mail.save(await self.mail.folder(USER, "INBOX"), NewMessage(text))

    async def flag(self, uid: int, flag: str, *, is_set: bool) -> None:
        view, one = await self.mail.open_mailbox(await self.mail.folder(USER, "INBOX")), frozenset({flag})
        if is_set:
            await self.mail.store_flags(view, UidSet.of([uid]), added=one)
        else:
            await self.mail.store_flags(view, UidSet.of([uid]), removed=one)

    async def expunge(self, uid: int) -> None:
        view = await self.mail.open_mailbox(await self.mail.folder(USER, "INBOX"))
        await self.mail.expunge(view, UidSet.of([uid]))


@dataclass
class History:
    """Random deeds of the users of one side. `number` makes mails differ."""

    side: Side
    random: Random
    number: int = 0
    deeds: list[str] = field(default_factory=list)

    async def go_on(self, most: int = 3) -> None:
        """Let the users do something."""
        mails = {uid for uid, _, _ in await self.side.shown()}
        for _ in range(self.random.randint(0, most)):
            kind = self.random.choice("aafe")
            uid = self.random.choice(sorted(mails)) if mails else 0
            if kind == "a":
                self.number += 1
                await self.side.append(f"Subject: {self.number}\r\n\r\nof {type(self.side).__name__}\r\n".encode())
            elif kind == "f" and uid:
                await self.side.flag(uid, self.random.choice(FLAGS), is_set=self.random.random() < 0.5)
            elif kind == "e" and uid:
                await self.side.expunge(uid)
                mails.remove(uid)
            self.deeds.append(f"{kind}{uid}")


async def password() -> bytes:
    await trio.lowlevel.checkpoint()
    return PASSWORD.encode()


def served(
    replica_of: OpenReplica, syncing: Syncing | None = None, users: Names | None = None
) -> Callable[[trio.abc.Stream], Awaitable[None]]:
    """Return the handler of connections."""
    users = users or Names(USER, "u2")
    services = DsyncServices(users, replica_of, password, HOSTNAME, syncing=syncing or Syncing())
    return DsyncServer(services).serve


@asynccontextmanager
async def door(
    replica_of: OpenReplica,
    wrap: Callable[[trio.abc.Stream], trio.abc.Stream] | None = None,
    syncing: Syncing | None = None,
    users: Names | None = None,
) -> AsyncIterator[str]:
    """Open a door, and yield its address as doveadm takes it. `wrap` may replace streams of connections."""
    handler = served(replica_of, syncing, users)

    async def serve(stream: trio.SocketStream) -> None:
        await handler(stream if wrap is None else wrap(stream))

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield f"tcp:127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


class NoMemory(LastSyncFiles):
    """The memory of a node that was started anew and has lost its files."""

    async def load(self, _user: str) -> LastSyncs:
        await trio.lowlevel.checkpoint()
        return LastSyncs()


def node_replicas(mail: HookedMail, clock_ms: Callable[[], int], *, forgets: bool = False) -> OpenReplica:
    """Return what opens replicas over a node's mail. `forgets`: each sync is the first that the node remembers."""
    memory = (NoMemory if forgets else LastSyncFiles)(mail.store.path.parent / "dovecots")
    return MailReplicas(mail, memory, clock_ms, TemporaryFile).of


Doveadm = Callable[..., Awaitable[CompletedProcess[bytes]]]


@dataclass
class Master:
    """A Dovecot that syncs with a door. `state` is what it remembers in syncs of the type `s`."""

    dovecot: Dovecot
    address: str
    state: str = ""
    user: str = USER

    async def sync(self, kind: str = "c", *options: str) -> CompletedProcess[bytes]:
        """Sync, and return how that has ended."""
        types: dict[str, Sequence[str]] = {"c": [], "f": ["-f"], "s": ["-s", self.state]}
        words = ["sync", "-u", self.user, *types[kind], *options, self.address]
        done = await trio.to_thread.run_sync(partial(self.dovecot.run, *words))
        if kind == "s":
            self.state = done.stdout.decode().strip()
        return done
