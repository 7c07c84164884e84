"""Repair of three nodes that were parted until their logs were gone, by inventories and a plan.

The test does what an operator does: an inventory of each node while they are apart, `diff` on a Spark cluster of two
workers, and `apply` once the links are back. Nodes also converge by themselves, so mailboxes of the plan may be equal
or have changed by then. In the end all nodes are equal, no mail is lost, and no client is shown another mail under a
UID that it knows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import trio
from click.testing import CliRunner

from benchmarks.clients.wire import connect_lmtp, deliver
from benchmarks.clusters.cluster import Cluster, Node
from replicator.cli.command_list import cli
from replicator.runtime.environment import Environment
from replicator.store.log.entry_removal import collect
from replicator.store.store import Store
from tests.end_to_end.helpers.ledger import Cache, Seen, log_in
from tests.spark.java import needs_java
from tests.spark.standalone import diff

SIDS = ("dc1", "dc2", "dc3")
SIDES = ("dc1",), ("dc2", "dc3")
USERS = [f"user{number}" for number in range(12)]
COMMON, APART = 6, 24  # mails for each user before the cut, and at each node while they are apart
COMMAND_TIMEOUT_S = 120.0
APPLIES_MAX = 60  # until all is equal: nodes also change mailboxes of the plan by themselves
PARTED_WITHIN_S = 20.0
ONE_WAY_S = 0.1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("repair") / "nodes"
    with Cluster(directory, USERS, proxied=True) as started:
        yield started


def at_all(cluster: Cluster, work: Callable[[Node], object]) -> None:
    """Do the work at all nodes at once."""
    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        list(pool.map(work, cluster.nodes))


def drop_log(node: Node) -> None:
    """Truncate a node's log, as it does by itself half a minute after `log.keep` or `log.max_size` is exceeded."""

    async def truncate() -> None:
        environment = Environment()
        path = node.data / "node.db"
        async with Store.open(path, environment.new_origin(node.sid), environment) as store:
            while (await store.write(partial(collect, upto=dict(store.context)))).entries:
                pass

    node.stop()
    trio.run(truncate)
    node.start()


class Clients:
    """Clients of all users at one node. A token names a mail, which every user gets."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.caches = {user: Cache(node.sid) for user in USERS}
        self.seen: dict[str, list[Seen]] = {}

    def deliver(self, tokens: list[str]) -> None:
        """Deliver a mail with each token to all users."""
        with connect_lmtp(self.node.address("lmtp")) as connection:
            for token in tokens:
                body = f"Message-ID: <{token}@example.org>\r\nSubject: {token}\r\n\r\n{token}\r\n"
                deliver(connection, USERS, body.encode())

    def look(self) -> None:
        """Read every INBOX, and check it against the cache."""
        for user, cache in self.caches.items():
            client = log_in(self.node, user)
            self.seen[user] = cache.select(client)
            client.logout()

    def change(self, expunged: set[str]) -> None:
        """Flag all mails of every INBOX, and expunge some."""
        for user in USERS:
            client = log_in(self.node, user)
            seen = self.caches[user].select(client)
            client.uid("STORE", "1:*", "+FLAGS", f"(${self.node.sid})")
            gone = [message for message in seen if message.token in expunged]
            client.uid("STORE", ",".join(str(message.uid) for message in gone), "+FLAGS", r"(\Deleted)")
            assert client.expunge()[0] == "OK"
            for message in gone:
                self.caches[user].expunged(message.token)
            self.seen[user] = self.caches[user].select(client)
            client.logout()


def replicator(*arguments: str) -> tuple[int, dict[str, object]]:
    """Run the command, and return its exit code and report."""
    command = [sys.executable, "-m", "replicator", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def apply_now(cluster: Cluster, plan: Path) -> tuple[int, dict[str, object]]:
    """Run `apply` in this process, which is faster: nodes have not yet become equal by themselves."""
    arguments = ["apply", str(plan), "--settle", "0s", "--json", "--config", str(cluster.directory / "dc1.toml")]
    done = CliRunner().invoke(cli, arguments)
    assert done.stderr == ""
    return done.exit_code, json.loads(done.stdout)


def part_nodes(cluster: Cluster) -> None:
    cluster.partition(*SIDES)
    components = [[*side] for side in SIDES for _ in side]
    cluster.wait_until(lambda statuses: [status["component"] for status in statuses] == components, PARTED_WITHIN_S)


def mend_links(cluster: Cluster) -> None:
    """Mend the links with a delay, so that nodes need some seconds, and many round trips, to converge by themselves."""
    for other in SIDES[1]:
        cluster.link("dc1", other).delay(ONE_WAY_S)
    cluster.heal()
    cluster.wait_together()


def inventories_of(cluster: Cluster, to: Path) -> dict[str, Path]:
    to.mkdir()

    def take(node: Node) -> None:
        config = str(cluster.directory / f"{node.sid}.toml")
        code, report = replicator("inventory", "--to", str(to / node.sid), "--config", config)
        assert (code, report["state"]) == (0, "done")

    at_all(cluster, take)
    return {sid: to / sid for sid in SIDS}


def digests(cluster: Cluster) -> set[object]:
    return {node.get("/api/v1/status")["digest"] for node in cluster.nodes}


def check_prediction(plan: Path, inventory: Path) -> None:
    """Check that the messages became what the plan predicted, UID for UID."""
    shown = {
        (row["mailbox"], row["guid"]): (row["uid"], row["modseq"], row["flags"], row["content_hash"])
        for row in pq.read_table(inventory / "messages").to_pylist()
    }
    predicted = pq.read_table(plan / "messages").to_pylist()
    assert len(predicted) == len(USERS) * (len(SIDS) * (APART - 1) + COMMON)
    for row in predicted:
        is_ = shown.get((row["mailbox"], row["guid"]))
        assert is_ == ((row["uid"], row["modseq"], row["flags"], row["content_hash"]) if row["uid"] else None)


@pytest.mark.long
@needs_java
def test_apply_makes_nodes_equal_that_were_parted_until_logs_were_gone(cluster: Cluster, tmp_path: Path) -> None:
    clients = {node.sid: Clients(node) for node in cluster.nodes}
    common = [f"common-{number}" for number in range(COMMON)]
    clients["dc1"].deliver(common)
    cluster.wait_until_equal()
    at_all(cluster, lambda node: clients[node.sid].look())
    part_nodes(cluster)
    sent = {sid: [f"{sid}-{number}" for number in range(APART)] for sid in SIDS}
    expunged = {sid: {common[at], f"{sid}-0"} for at, sid in enumerate(SIDS)}

    def go_on(node: Node) -> None:
        clients[node.sid].deliver(sent[node.sid])
        clients[node.sid].change(expunged[node.sid])

    at_all(cluster, go_on)
    at_all(cluster, drop_log)
    cluster.wait_until(lambda statuses: not any(status["log_entries"] for status in statuses), PARTED_WITHIN_S)
    plan = tmp_path / "plan"
    code, found = diff(inventories_of(cluster, tmp_path / "inventories"), plan, tmp_path / "spark")
    assert (code, found["relations"], found["trees"]) == (1, {"forked": len(USERS)}, {"equal": len(USERS)})
    expected = {"missing": len(SIDS) * (APART - 1), "expunged": len(SIDS), "flags_differ": COMMON - len(SIDS)}
    assert {kind: found["kinds"][kind] for kind in expected} == {
        kind: count * len(USERS) for kind, count in expected.items()
    }
    code, report = apply_now(cluster, plan)
    assert (code, report["outcomes"]) == (1, {"unreachable": len(USERS)}), "while they are apart"
    mend_links(cluster)

    for _ in range(APPLIES_MAX):
        code, report = apply_now(cluster, plan)
        assert (report["state"], report["done"]) == ("done", len(USERS))
        assert set(report["outcomes"]) <= {"repaired", "equal", "moved"}, report["undone"]  # type: ignore[call-overload]  # an object
        if code == 0:
            break
    assert code == 0, report
    assert len(digests(cluster)) == 1, "`apply` has reported that all is equal"
    code, report = replicator("apply", str(plan), "--config", str(cluster.directory / "dc2.toml"))
    assert (code, report["outcomes"]) == (0, {"equal": len(USERS)})

    check_prediction(plan, inventories_of(cluster, tmp_path / "afterwards")["dc3"])
    at_all(cluster, lambda node: clients[node.sid].look())
    kept = {*common, *(token for some in sent.values() for token in some)} - set().union(*expunged.values())
    for user in USERS:
        seen = clients["dc1"].seen[user]
        assert [clients[sid].seen[user] for sid in SIDES[1]] == [seen, seen]
        assert {message.token for message in seen} == kept
        flagged = {message.token: message.flags for message in seen}
        assert all(flagged[token] >= {f"${sid}" for sid in SIDS} for token in common if token in kept)
