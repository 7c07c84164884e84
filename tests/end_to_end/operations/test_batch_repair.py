"""Three nodes that were parted until their logs were gone are compared by inventories and made equal by the plan.

All as an operator does it, from outside: an inventory of each node while they are apart, `diff` on a Spark cluster of
two workers, and `apply` once the lines are back. Nodes heal by themselves at the same time, so what the plan names may
be equal or have moved on by then; in the end all is equal, no mail is lost, and no client is shown another mail under a
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
COMMON, APART = 6, 24  # mails that each user gets before, and at each node while they are apart
COMMAND_TIMEOUT_S = 120.0
APPLIES_MAX = 60  # until all is equal: nodes that heal by themselves move what the plan names
PARTED_WITHIN_S = 20.0
ONE_WAY_S = 0.1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("repair") / "nodes"
    with Cluster(directory, USERS, proxied=True) as started:
        yield started


def at_all(cluster: Cluster, work: Callable[[Node], object]) -> None:
    """At all nodes at once."""
    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        list(pool.map(work, cluster.nodes))


def drop_log(node: Node) -> None:
    """What a node does by itself once `log.keep` or `log.max_size` is exceeded, which takes half a minute at least."""

    async def forget() -> None:
        environment = Environment()
        path = node.data / "node.db"
        async with Store.open(path, environment.new_origin(node.sid), environment) as store:
            while (await store.write(partial(collect, upto=dict(store.context)))).entries:
                pass

    node.stop()
    trio.run(forget)
    node.start()


class Clients:
    """Who sends and reads mail at one node. Tokens name mails, in all mailboxes alike."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.caches = {user: Cache(node.sid) for user in USERS}
        self.seen: dict[str, list[Seen]] = {}

    def deliver(self, tokens: list[str]) -> None:
        """To everybody."""
        with connect_lmtp(self.node.address("lmtp")) as connection:
            for token in tokens:
                text = f"Message-ID: <{token}@example.org>\r\nSubject: {token}\r\n\r\n{token}\r\n"
                deliver(connection, USERS, text.encode())

    def look(self) -> None:
        """At every INBOX, as a client that remembers what it saw."""
        for user, cache in self.caches.items():
            client = log_in(self.node, user)
            self.seen[user] = cache.select(client)
            client.logout()

    def change(self, expunged: set[str]) -> None:
        """Every INBOX: a flag for all that is there, and some mails are expunged."""
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
    """The exit code and the report."""
    command = [sys.executable, "-m", "replicator", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def apply_now(cluster: Cluster, plan: Path) -> tuple[int, dict[str, object]]:
    """The same command, in this process: it is there before nodes have healed everything by themselves."""
    arguments = ["apply", str(plan), "--settle", "0s", "--json", "--config", str(cluster.directory / "dc1.toml")]
    done = CliRunner().invoke(cli, arguments)
    assert done.stderr == ""
    return done.exit_code, json.loads(done.stdout)


def part(cluster: Cluster) -> None:
    cluster.partition(*SIDES)
    components = [[*side] for side in SIDES for _ in side]
    cluster.wait_until(lambda statuses: [status["component"] for status in statuses] == components, PARTED_WITHIN_S)


def meet(cluster: Cluster) -> None:
    """The lines are back, and they are long: what heals by itself, in many round trips, takes a few seconds."""
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
    """What Spark has said that messages become is what the nodes have made of them, UID for UID."""
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
    part(cluster)
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
    meet(cluster)

    for _ in range(APPLIES_MAX):
        code, report = apply_now(cluster, plan)
        assert (report["state"], report["done"]) == ("done", len(USERS))
        assert set(report["outcomes"]) <= {"repaired", "equal", "moved"}, report["undone"]  # type: ignore[call-overload]  # an object
        if code == 0:
            break
    assert code == 0, report
    assert len(digests(cluster)) == 1, "it has said so"
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
