"""Write the database of this version: `python -m tests.earlier_databases.write`.

A real node gets mail and changes by LMTP and IMAP, and ends in order; `test_upgrades.py` has what it then shows.
"""

from __future__ import annotations

import gzip
import imaplib
import smtplib
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from benchmarks.clusters.prepared import DATABASE

USER = "alice"
DIRECTORY = Path(__file__).parent


def mail(number: int) -> bytes:
    """Return a mail."""
    head = (
        f"Message-ID: <{number}@example.org>\r\nSubject: mail {number}\r\nDate: Sun, 22 Nov 2026 10:0{number}:00 +0000"
    )
    return f"{head}\r\n\r\n{f'text {number} ' * 40}\r\n".encode()


def main() -> None:
    """Write the file, which has the number of its schema."""
    with TemporaryDirectory() as directory:
        with Cluster(Path(directory) / "nodes", [USER], size=1, copies=1) as cluster:
            node = cluster.nodes[0]
            _change(node)
        copy = Path(directory) / "copy"
        connection = sqlite3.connect(node.data / DATABASE)
        schema = connection.execute("PRAGMA user_version").fetchone()[0]
        connection.execute("VACUUM INTO ?", (str(copy),))
        connection.close()
        file = DIRECTORY / f"schema-{schema}.db.gz"
        file.write_bytes(gzip.compress(copy.read_bytes(), mtime=0))
        click.echo(file)


def _change(node: Node) -> None:
    with smtplib.LMTP(*node.address("lmtp"), "localhost") as sender:
        for number in range(4):
            sender.sendmail("a@example.org", [USER], mail(number))
    with imaplib.IMAP4(*node.address("imap")) as client:
        client.login(USER, PASSWORD)
        client.create("Work")
        client.create("Work/Sub")
        client.subscribe("Work/Sub")
        client.select("INBOX")
        client.uid("STORE", "1", "+FLAGS", r"(\Seen \Flagged)")
        client.uid("STORE", "2", "+FLAGS", "($Keyword)")
        client.uid("COPY", "2:3", "Work/Sub")
        client.uid("STORE", "3", "+FLAGS", r"(\Deleted)")
        client.expunge()
        client.append("Work", r"(\Draft)", "", b"Message-ID: <draft@example.org>\r\nSubject: draft\r\n\r\ndraft\r\n")
        client.rename("Work", "Office")


if __name__ == "__main__":
    main()
