"""Nodes of this version open the databases of earlier ones, and show, search, change and check what is in them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.clusters.prepared import DATABASE
from benchmarks.clusters.states import run_task
from replicator.store.db.schema import SCHEMA_VERSION
from tests.earlier_databases.write import DIRECTORY, USER, mail
from tests.effort import first
from tests.end_to_end.helpers.ledger import Seen, fetch, log_in, number_of

CHECKED_WITHIN_S = 120.0
FILES = {int(file.name.removeprefix("schema-").removesuffix(".db.gz")): file for file in DIRECTORY.glob("*.gz")}
"""The databases by their schemas."""


def shown(node: Node, folder: str) -> tuple[list[tuple[int, frozenset[str], bytes]], int]:
    """Return the messages of a folder, without what LMTP has put before them, and its UIDNEXT."""
    with log_in(node, USER) as client:
        client.select(folder)
        found: list[Seen] = fetch(client, "BODY.PEEK[]")
        sent = [(one.uid, one.flags, one.content[one.content.index(b"Message-ID") :]) for one in found]
        return sent, number_of(client, "UIDNEXT")


def test_there_is_a_database_of_each_schema_that_is_upgraded() -> None:
    assert FILES.keys() >= set(range(min(FILES), SCHEMA_VERSION))


@pytest.mark.parametrize("schema", first(2, sorted(FILES)))
def test_node_goes_on_from_the_database_of_an_earlier_version(tmp_path: Path, schema: int) -> None:
    cluster = Cluster(tmp_path, [USER], size=2, copies=1)
    path = cluster.nodes[0].data / DATABASE
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.decompress(FILES[schema].read_bytes()))
    with cluster:
        for node in cluster.nodes:  # the second one has a new database, and gets everything from the first
            cluster.wait_until_equal()
            assert shown(node, "INBOX") == (
                [
                    (1, frozenset({r"\Seen", r"\Flagged"}), mail(0)),
                    (2, frozenset({"$Keyword"}), mail(1)),
                    (4, frozenset(), mail(3)),
                ],
                5,
            )
            assert shown(node, "Office/Sub") == (
                [(1, frozenset({"$Keyword"}), mail(1)), (2, frozenset(), mail(2))],
                3,
            )
            assert [flags for _, flags, _ in shown(node, "Office")[0]] == [frozenset({r"\Draft"})]
        with log_in(cluster.nodes[0], USER) as client:
            assert client.lsub()[1] == [rb'() "/" "Work/Sub"']
            client.select("INBOX")
            assert client.uid("SEARCH", "BODY", '"text 3"')[1] == [b"4"]
            assert client.uid("STORE", "4", "+FLAGS", r"(\Answered)")[0] == "OK"
        cluster.wait_until_equal()
        assert shown(cluster.nodes[1], "INBOX")[0][-1] == (4, frozenset({r"\Answered"}), mail(3))
        for node in cluster.nodes:
            assert run_task(node, "check", {}, CHECKED_WITHIN_S)["damage"] == {}
