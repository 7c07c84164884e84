"""Large messages at nodes of a cluster, and their attachments in the attachment stores."""

from __future__ import annotations

import base64
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from protocol.commands import FetchPart, Reply
from replicator.mail.mailstore import NewMessage, read_all
from replicator.replication.bodies.from_peers import peer_fetch
from replicator.replication.bodies.from_peers.peer_fetch import AnyFetch, ReadChunk
from replicator.replication.links.link import PeerLink
from replicator.store.attachments.construction import Construction
from replicator.store.attachments.names import s_name
from replicator.store.store import Store
from tests.replication.cluster import USER, Node

LOGO = random.Random(1).randbytes(300_000)


def message(number: int, attachment: bytes = LOGO) -> bytes:
    lines = base64.encodebytes(attachment).replace(b"\n", b"\r\n")
    head = f"Subject: {number}\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nmessage {number}\r\n"
    return head.encode() + b"--b\r\nContent-Transfer-Encoding: base64\r\n\r\n" + lines + b"--b--\r\n"


async def save(node: Node, body: bytes, user: str = USER) -> int:
    return (await node.mail.save(await node.mail.folder(user, "INBOX"), NewMessage(body))).uid


async def bodies(node: Node, user: str = USER) -> dict[int, bytes]:
    view = await node.view("INBOX", user)
    return {uid: await read_all(await node.mail.read_body(row)) for uid, row in list(view.messages.items())}


def attachment_files(node: Node, pattern: str) -> list[Path]:
    return sorted((node.config.node.data / "attachments").rglob(pattern))


def contents(node: Node) -> list[Path]:
    return attachment_files(node, "content*")


async def check_holders(node: Node) -> None:
    """Check that the attachment store has exactly the holders that the database records."""
    rows = await node.store.read(lambda reader: reader.execute("SELECT holder FROM attachment").fetchall())
    assert sorted(path.name for path in attachment_files(node, "holders/*")) == sorted(holder for (holder,) in rows)


def garble(node: Node) -> None:
    (file,) = contents(node)
    data = bytearray(file.read_bytes())
    data[200_000] ^= 1
    file.write_bytes(data)


async def keep_apart(node: Node) -> None:
    """Move each attachment under the name of its one recorded holder, as if its own place had been blocked."""
    rows = await node.store.read(lambda reader: reader.execute("SELECT holder FROM attachment").fetchall())
    for content_file in contents(node):
        holders = list((content_file.parent / "holders").iterdir())
        (holder,) = (one for one in holders if (one.name,) in rows)
        for other in {*holders} - {holder}:  # holders of downloads and uploads
            other.unlink()
        place = node.config.node.data / "attachments" / s_name(holder.name)
        place.parent.mkdir(parents=True, exist_ok=True)
        content_file.parent.rename(place)
    await node.store.write(lambda tx: tx.connection.execute("UPDATE attachment SET kept = 1"))


AnswerChunk = Callable[[FetchPart], Reply | None]


def answer_chunks(monkeypatch: pytest.MonkeyPatch, answer_chunk: AnswerChunk, delay_s: float = 0.0) -> None:
    """Let all nodes answer requests for chunks by this function, and in the usual way where it returns None."""
    answer = peer_fetch.answer_fetch

    async def answering(store: Store, link: PeerLink, command: AnyFetch, read_chunk: ReadChunk) -> Reply:
        if isinstance(command, FetchPart):
            await trio.sleep(delay_s)
            if (reply := answer_chunk(command)) is not None:
                return reply
        return await answer(store, link, command, read_chunk)

    monkeypatch.setattr(peer_fetch, "answer_fetch", answering)


def raise_disk_full() -> Construction:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
