"""Search texts at all nodes that have a body: that of the client, and those that the body came to over a link."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import trio

from replicator.config import Config
from tests.end_to_end.helpers.in_process import running
from tests.end_to_end.helpers.two_nodes import client_of, configs

MAIL = b"Content-Type: text/plain; charset=utf-8\r\n\r\nStra\xc3\x9fe 7\r\n"


def has_search_text(config: Config) -> bool:
    file = f"file:{config.node.data}/search.db?mode=ro"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(file, uri=True)) as texts:
        return texts.execute("SELECT 1 FROM search_text WHERE packed <> x''").fetchone() is not None
    return False  # the node has yet to create the file


def damage_once_kept(config: Config) -> None:
    """Damage the body at a running node, once it is there and has a search text."""
    for _ in range(300):
        if has_search_text(config):
            break
        time.sleep(0.1)
    else:
        raise AssertionError(f"{config.node.id} makes no search text")
    with closing(sqlite3.connect(config.node.database, isolation_level=None)) as database:
        assert database.execute("UPDATE content SET body = x'00'").rowcount == 1


async def test_every_node_searches_by_search_texts_of_its_own(tmp_path: Path) -> None:
    nodes = configs(tmp_path)

    def save() -> None:
        with client_of(nodes[0]) as client:
            assert client.append("INBOX", "", "", MAIL)[0] == "OK"

    def ask(config: Config) -> None:
        with client_of(config) as client:
            assert client.select("INBOX") == ("OK", [b"1"])
            assert client.search(None, "BODY", '"E 7"') == ("OK", [b"1"])
            assert client.search(None, "BODY", "nothing") == ("OK", [b""])
            assert client.fetch("1", "(BODY.PEEK[])")[0] == "NO", "no node can read the body"

    with trio.fail_after(60):
        async with running(nodes):
            await trio.to_thread.run_sync(save)
            for config in nodes:
                await trio.to_thread.run_sync(damage_once_kept, config)
            for config in nodes:
                await trio.to_thread.run_sync(ask, config)
