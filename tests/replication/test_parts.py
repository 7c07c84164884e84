"""Large messages: their parts lie in the attachment store of each node, and travel once."""

from __future__ import annotations

import base64
import random
from pathlib import Path

from trio.testing import MockClock

from replicator.mailstore import NewMessage, read_all
from tests.replication.cluster import USER, Node, cluster

LOGO = random.Random(1).randbytes(300_000)


def message(number: int, attachment: bytes = LOGO) -> bytes:
    encoded = base64.encodebytes(attachment).replace(b"\n", b"\r\n")
    return (
        (
            f"Subject: {number}\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
            f"--b\r\n\r\nmessage {number}\r\n--b\r\nContent-Type: image/png\r\nContent-Transfer-Encoding: base64\r\n\r\n"
        ).encode()
        + encoded
        + b"--b--\r\n"
    )


async def save(node: Node, text: bytes, user: str = USER) -> int:
    return (await node.mail.save(await node.mail.folder(user, "INBOX"), NewMessage(text))).uid


async def texts(node: Node, user: str = USER) -> dict[int, bytes]:
    view = await node.view("INBOX", user)
    return {uid: await read_all(await node.mail.read_text(row)) for uid, row in list(view.messages.items())}


def attachments(node: Node) -> list[Path]:
    return sorted(path for path in (node.config.node.data / "attachments").rglob("content*"))


async def test_a_large_message_is_in_parts_at_every_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        assert await save(nodes["dc2"], message(1)) == 1
        await nodes.converged()
        for node in nodes.all():
            assert await texts(node) == {1: message(1)}
            (file,) = attachments(node)
            assert file.read_bytes() == LOGO


async def test_a_part_travels_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for number in range(1, 6):
            await save(nodes["dc1"], message(number))
        await nodes.converged()
        for node in nodes.all():
            assert await texts(node) == {number: message(number) for number in range(1, 6)}
            assert len(attachments(node)) == 1
