"""A node's files, and what they say."""

from __future__ import annotations

import smtplib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import trio
from click.testing import Result

from replicator.config import Config, load_config
from tests.end_to_end.helpers.in_process import running

LARGE = 300_000  # octets: more than `content.inline_max`


def mail(token: str, size: int = 0) -> bytes:
    filler = f"{token} ".encode() * (size // (len(token) + 1))
    lines = b"\r\n".join(filler[at : at + 70] for at in range(0, len(filler), 70))
    head = f"Message-ID: <{token}@example.org>\r\nContent-Type: application/octet-stream\r\n\r\n"
    return head.encode() + lines + b"\r\n"


@dataclass
class NodeFiles:
    """A node that does not run. `config_file` is beside its data."""

    config_file: Path

    @property
    def config(self) -> Config:
        return load_config(self.config_file)

    @property
    def data(self) -> Path:
        return self.config.node.data

    def query(self, sql: str, *parameters: object) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.data / "node.db", isolation_level=None)) as connection:
            return connection.execute(sql, parameters).fetchall()

    def shown(self) -> list[tuple[object, ...]]:
        """Return all messages, with the bodies' hashes and the attachments of each."""
        return self.query(
            "SELECT mailbox, uid, guid, flags, content_hash, (SELECT GROUP_CONCAT(HEX(hash)) FROM attachment"
            " WHERE text = content_hash) FROM by_uid ORDER BY mailbox, uid"
        )

    def deliver(self, *mails: bytes) -> None:
        """Run the node, for alice to get these."""
        self.ask(lambda: send_to(self.config, mails))

    def ask(self, *work: Callable[[], object]) -> None:
        """Run the node while this is done, in a thread."""

        async def run() -> None:
            async with running([self.config]):
                for each in work:
                    await trio.to_thread.run_sync(each)

        trio.run(run)

    def broken_attachments(self) -> list[str]:
        """Return which attachments of the database have no holder or not the content that their hash names."""
        found: list[str] = []
        for content_hash, holder in self.query("SELECT hash, holder FROM attachment WHERE kept = 0"):
            assert isinstance(content_hash, bytes)
            digits = content_hash.hex()
            place = (
                (self.config.content.attachments or self.data / "attachments") / digits[:2] / digits[2:4] / digits[4:]
            )
            contents = list(place.glob("content.*"))
            if not (place / "holders" / str(holder)).exists() or len(contents) != 1:
                found.append(digits)
        return found


def send_to(config: Config, mails: tuple[bytes, ...]) -> None:
    """Deliver mail to a node that runs."""
    assert config.listen.lmtp is not None
    with smtplib.LMTP(*config.listen.lmtp, "localhost") as client:
        for body in mails:
            client.sendmail("a@example.org", ["alice"], body)


Backup = Callable[..., dict[str, object]]
Invoke = Callable[..., Result]
