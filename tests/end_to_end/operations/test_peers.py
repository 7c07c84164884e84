"""A cluster that grows and shrinks by `replicator peer`, without a restart, while mail is delivered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.clusters.proxy import HOST
from tests.end_to_end.helpers.balanced_sender import BalancedSender
from tests.end_to_end.helpers.ledger import Cache, log_in
from tests.end_to_end.helpers.load import SHORT_TIMEOUTS
from tests.end_to_end.helpers.mail_clients import deliver
from tests.end_to_end.helpers.service_manager import ServiceManager

DC1, DC2, DC3 = "dc1", "dc2", "dc3"


def start(nodes: ServiceManager, *sids: str) -> None:
    for sid in sids:
        nodes.nodes[sid].launch()
    for sid in sids:
        nodes.nodes[sid].wait_ready()
        nodes.replicator("health", "--wait", "2m", *nodes.options(sid))


def status(nodes: ServiceManager, sid: str) -> dict[str, object]:
    (told,) = json.loads(nodes.replicator("status", "--json", *nodes.options(sid)))["nodes"]
    return dict(told["status"])


def shown(nodes: ServiceManager, sid: str) -> set[str]:
    client = log_in(nodes.nodes[sid], "alice")
    tokens = {message.token for message in Cache(sid).select(client)}
    client.logout()
    return tokens


@pytest.mark.long
def test_two_nodes_become_three_and_two_again(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, ["alice"], {DC1: [DC2], DC2: [DC1], DC3: [DC1, DC2]}, SHORT_TIMEOUTS) as nodes:
        start(nodes, DC1, DC2)
        pids = [nodes.nodes[sid].pid for sid in (DC1, DC2)]
        with BalancedSender(list(nodes.nodes.values()), "alice") as sender:
            sender.wait()
            for sid in (DC1, DC2):
                said = nodes.replicator("peer", "add", DC3, nodes.address(DC3), *nodes.options(sid))
                assert said == f"{sid}: dc3 is a peer; do the same at each other node\n"
            start(nodes, DC3)
            sender.wait()
            nodes.replicator("status", "--wait-equal", "2m", *nodes.options(DC1, DC2, DC3))
            assert {DC1, DC2, DC3} == set(sender.accepted.values())
            assert status(nodes, DC1)["copies_reachable"] == 3

            said = nodes.replicator("peer", "remove", DC3, *nodes.options(DC1), code=1)
            assert "dc1 has a link to dc3: stop dc3 first" in said
            nodes.replicator("drain", *nodes.options(DC3))
            sender.wait()
            nodes.replicator("status", "--wait-equal", "2m", *nodes.options(DC1, DC2, DC3))
            nodes.nodes[DC3].stop()
            for sid in (DC1, DC2):
                nodes.replicator("peer", "remove", DC3, *nodes.options(sid))
            sender.wait()
        nodes.replicator("status", "--wait-equal", "2m", *nodes.options(DC1, DC2))
        for sid in (DC1, DC2):
            assert shown(nodes, sid) == set(sender.accepted)
            now = status(nodes, sid)
            assert (now["copies_reachable"], set(now["unsettled"])) == (2, {DC1, DC2})  # type: ignore[call-overload]
            assert 'removed = ["dc3"]' in nodes.config(sid).read_text("utf-8")
            nodes.replicator("checkpoint", *nodes.options(sid))  # ends once all nodes that count have everything
        assert pids == [nodes.nodes[sid].pid for sid in (DC1, DC2)]
        assert nodes.asked == []  # of the service manager


@pytest.mark.long
def test_peer_is_dialled_at_the_address_that_a_reload_brings(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, ["alice"], {DC1: [DC2], DC2: [DC1]}, SHORT_TIMEOUTS) as nodes:
        config = nodes.config(DC1)
        right = config.read_text("utf-8")
        config.write_text(right.replace(nodes.address(DC2), f"{HOST}:9"), "utf-8")
        for sid in (DC1, DC2):
            nodes.nodes[sid].launch("--new-cluster")
        for sid in (DC1, DC2):
            nodes.nodes[sid].wait_ready()
        deliver(nodes.nodes[DC1], [b"Message-ID: <alone@example.org>\r\n\r\nx\r\n"], ["alice"])
        config.write_text(right, "utf-8")
        assert nodes.replicator("reload", *nodes.options(DC1)) == "dc1 uses no certificates\n"
        nodes.replicator("status", "--wait-equal", "2m", *nodes.options(DC1, DC2))
        assert shown(nodes, DC2) == {"alone"}


@pytest.mark.long
def test_node_that_runs_with_another_file_says_so(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, ["alice"], {DC1: []}) as nodes:
        start(nodes, DC1)
        other = tmp_path / "other.toml"
        other.write_text(nodes.config(DC1).read_text("utf-8"), "utf-8")
        said = nodes.replicator("peer", "add", DC2, f"{HOST}:9", "--config", str(other), code=1)
        assert "is changed, but dc1 runs with another file" in said
