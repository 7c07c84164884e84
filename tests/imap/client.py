"""An IMAP client that talks to a server over memory streams, line by line or from a script."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import trio
import trio.testing

from replicator.imap.matching.message_reader import Parsing
from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from replicator.imap.wire.commands.command_parser import CommandParser
from replicator.mail.mailstore import Folder, MailStore, NewMessage
from replicator.users import Identity, Login, ScramAttempt, ScramKeys
from replicator.users.schemes import parse_hash
from tests.one_node import run_inline

LOOPBACK = "127.0.0.1"
PARSER = CommandParser()  # compiled once for all tests
PASSWORD = parse_hash("{PLAIN}anything")
TEST_TIMEOUT_S = 30.0  # a test fails instead of hanging; shorter than any deadline of the server, for virtual time


@dataclass
class ReversedNameUsers:
    """A user directory in which every name exists, with the reversed name as the password."""

    verified: list[tuple[str, str | None]] = field(default_factory=list)

    has_masters = False

    async def verify(
        self,
        name: str,
        password: str,
        *,
        address: str | None = None,
        as_user: str | None = None,  # noqa: ARG002 - nobody here may act as another
    ) -> Login | None:
        self.verified.append((name, address))
        await trio.lowlevel.checkpoint()
        return Login(name, PASSWORD) if name and password == name[::-1] else None

    def has_scram(self, *, for_all: bool = False) -> bool:  # noqa: ARG002 - nobody here can log in by SCRAM
        return False

    def scram_keys(self, name: str, as_user: str | None = None) -> ScramKeys:
        raise NotImplementedError

    def lacks_scram(self, name: str, as_user: str | None = None) -> bool:
        raise NotImplementedError

    def shuts_out(self, name: str, address: str | None, as_user: str | None = None) -> str | None:  # noqa: ARG002 - nobody here is
        return None

    async def verify_scram(
        self, name: str, attempt: ScramAttempt, *, address: str | None = None, as_user: str | None = None
    ) -> Login | None:
        raise NotImplementedError

    async def admit(self, name: str, identity: Identity | None, *, address: str | None = None) -> Login | None:
        raise NotImplementedError

    def holds(self, login: Login) -> bool:
        return bool(login.user)


@dataclass
class Client:
    stream: trio.abc.Stream
    received: bytearray = field(default_factory=bytearray)

    async def send(self, text: bytes | str) -> None:
        await self.stream.send_all(text.encode("utf-8") if isinstance(text, str) else text)

    async def line(self) -> str:
        """Return the server's next line without its line end; "" at the end of the connection."""
        with trio.fail_after(TEST_TIMEOUT_S):
            while (end := self.received.find(b"\r\n")) < 0:
                if not (data := await self.stream.receive_some(65536)):
                    return ""
                self.received += data
        line = self.received[:end].decode("utf-8")
        del self.received[: end + 2]  # where it stands: a copy of the rest for each line would take long
        return line

    async def until(self, tag: str) -> list[str]:
        """Return the lines up to the one with this tag, or to the end of the connection."""
        lines = [await self.line()]
        while lines[-1] and not lines[-1].startswith(tag + " "):
            lines.append(await self.line())
        return lines

    async def octets(self, tag: str = "t") -> bytes:
        """Return all octets up to the line with this tag, whatever they are, without that line."""
        end = b"\r\n" + tag.encode() + b" "
        with trio.fail_after(TEST_TIMEOUT_S):
            while (at := self.received.find(end)) < 0 or b"\r\n" not in self.received[at + 2 :]:
                data = await self.stream.receive_some(65536)
                assert data, "the connection ended"
                self.received += data
        found, _, rest = bytes(self.received).partition(end)
        assert rest.startswith(b"OK "), rest[:200]
        self.received = bytearray(rest.partition(b"\r\n")[2])
        return found + b"\r\n"

    async def run(self, command: str, tag: str = "t") -> list[str]:
        await self.send(f"{tag} {command}\r\n")
        return await self.until(tag)

    async def log_in(self, user: str, mailbox: str | None = None) -> None:
        assert "t OK" in (await self.run(f"LOGIN {user} {user[::-1]}"))[-1]
        if mailbox is not None:
            assert "t OK" in (await self.run(f"SELECT {mailbox}"))[-1]


def services(mail: MailStore) -> ImapServices:
    return ImapServices(
        mail=mail,
        users=ReversedNameUsers(),
        sid="dc1",
        version="1.0",
        parser=PARSER,
        parsing=Parsing(run_in_thread=run_inline),
    )


async def fill(mail: MailStore, messages: int = 1, body: bytes = b"Subject: x\r\n\r\nHello\r\n") -> Folder:
    """Save so many messages in alice's INBOX."""
    inbox = await mail.folder("alice", "INBOX")
    for _ in range(messages):
        await mail.save(inbox, NewMessage(body))
    return inbox


@asynccontextmanager
async def connected(served: ImapServices, *, address: str = LOOPBACK, secure: bool = False) -> AsyncIterator[Client]:
    """Connect a client that has read the greeting. The server must end once the client has gone."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address=address, secure=secure))
        client = Client(ours)
        assert (await client.line()).startswith("* OK ")
        yield client
        with trio.fail_after(TEST_TIMEOUT_S):
            await ours.aclose()


async def play(script: str, served: ImapServices) -> None:
    """Run a script, written as `dialogues/README.txt` says."""
    clients: dict[str, Client] = {}
    async with trio.open_nursery() as nursery:
        for number, line in enumerate(script.splitlines(), 1):
            where = f"line {number}: {line}"
            if not line or line.startswith("#"):
                continue
            name, does, text = line[0], line[2], line[4:]
            if does == "=":
                ours, theirs = trio.testing.memory_stream_pair()
                nursery.start_soon(partial(serve_imap, theirs, served, address=LOOPBACK))
                clients[name] = Client(ours)
                await clients[name].line()
                if text:
                    await clients[name].log_in(*text.split())
            elif does == ">":
                await clients[name].send(text + "\r\n")
            else:
                assert does == "<", where
                try:
                    said = await clients[name].line()
                except trio.TooSlowError as error:
                    raise AssertionError(f"{where}\nnot said") from error
                assert re.fullmatch(".*".join(map(re.escape, text.split("..."))), said), f"{where}\nnot {said!r}"
        for name, client in clients.items():
            await client.stream.aclose()
            assert not client.received, f"{name} received more lines: {bytes(client.received)!r}"
