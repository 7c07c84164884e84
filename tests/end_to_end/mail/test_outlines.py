"""Outlines at all nodes that have a body: that of the client, and those that the body came to over a link."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import trio

from replicator.config import Config
from tests.end_to_end.helpers.in_process import running
from tests.end_to_end.helpers.two_nodes import client_of, configs

MAIL = b"From: Ann <ann@example.org>\r\nSubject: hello\r\n\r\nx\r\n"
REPLY = b"References: <a@example.org>\r\n\r\nyes\r\n"


def damage_once_outlined(config: Config) -> None:
    """Damage the two bodies at a running node, once they are there and have outlines."""
    query = "UPDATE content SET body = x'00' WHERE body <> x'00' AND id IN (SELECT id FROM outline WHERE packed <> x'')"
    damaged = 0
    with closing(sqlite3.connect(config.node.database, isolation_level=None)) as database:
        for _ in range(300):
            if (damaged := damaged + database.execute(query).rowcount) == 2:
                return
            time.sleep(0.1)
    raise AssertionError(f"{config.node.id} makes no outline")


async def test_every_node_answers_by_outlines_of_its_own(tmp_path: Path) -> None:
    nodes = configs(tmp_path)

    def save() -> None:
        with client_of(nodes[0]) as client:
            assert client.append("INBOX", "", "", MAIL)[0] == "OK"
            assert client.append("INBOX", "", "", REPLY)[0] == "OK"

    def ask(config: Config) -> str:
        """Check what the node tells by its outlines, and return the previews and identifiers."""
        with client_of(config) as client:
            assert client.select("INBOX") == ("OK", [b"2"])
            assert client.search(None, "FROM", "ann@") == ("OK", [b"1"])
            assert '"hello" (("Ann" NIL "ann" "example.org"))' in str(client.fetch("1", "(ENVELOPE BODYSTRUCTURE)"))
            assert client.fetch("1", "(BODY.PEEK[])")[0] == "NO", "no node can read the body"
            return str(client.fetch("1:2", "(PREVIEW THREADID EMAILID)"))

    with trio.fail_after(60):
        async with running(nodes):
            await trio.to_thread.run_sync(save)
            for config in nodes:
                await trio.to_thread.run_sync(damage_once_outlined, config)
            told = {await trio.to_thread.run_sync(ask, config) for config in nodes}
    assert len(told) == 1
    assert 'PREVIEW "yes" THREADID (T' in told.pop()
