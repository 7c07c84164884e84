"""Outlines at all nodes that have a body: that of the client, and those that the body came to over a link."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import trio

from replicator.config import Config
from replicator.node import DATABASE
from tests.end_to_end.helpers.in_process import running
from tests.end_to_end.helpers.two_nodes import client_of, configs

MAIL = b"From: Ann <ann@example.org>\r\nSubject: hello\r\n\r\nx\r\n"


def damage_once_outlined(config: Config) -> None:
    """Damage the body at a running node, once it is there and has an outline."""
    query = "UPDATE content SET body = x'00' WHERE id IN (SELECT id FROM outline WHERE packed <> x'')"
    with closing(sqlite3.connect(config.node.data / DATABASE, isolation_level=None)) as database:
        for _ in range(300):
            if database.execute(query).rowcount:
                return
            time.sleep(0.1)
    raise AssertionError(f"{config.node.id} makes no outline")


async def test_every_node_answers_by_outlines_of_its_own(tmp_path: Path) -> None:
    nodes = configs(tmp_path)

    def save() -> None:
        with client_of(nodes[0]) as client:
            assert client.append("INBOX", "", "", MAIL)[0] == "OK"

    def ask(config: Config) -> None:
        with client_of(config) as client:
            assert client.select("INBOX") == ("OK", [b"1"])
            assert client.search(None, "FROM", "ann@") == ("OK", [b"1"])
            assert '"hello" (("Ann" NIL "ann" "example.org"))' in str(client.fetch("1", "(ENVELOPE BODYSTRUCTURE)"))
            assert client.fetch("1", "(BODY.PEEK[])")[0] == "NO", "no node can read the body"

    with trio.fail_after(60):
        async with running(nodes):
            await trio.to_thread.run_sync(save)
            for config in nodes:
                await trio.to_thread.run_sync(damage_once_outlined, config)
            for config in nodes:
                await trio.to_thread.run_sync(ask, config)
