"""The procedures of docs/procedures.md: each script of deploy/procedures, with real nodes that have mail."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.end_to_end.helpers.balanced_sender import BalancedSender
from tests.end_to_end.helpers.ledger import Cache, log_in
from tests.end_to_end.helpers.load import SHORT_TIMEOUTS
from tests.end_to_end.helpers.mail_clients import deliver
from tests.end_to_end.helpers.service_manager import SCRIPTS, ServiceManager

PAGE = SCRIPTS.parents[1] / "docs" / "procedures.md"
LARGE = 1 << 20  # octets: an attachment
DC1, DC2, DC3 = "dc1", "dc2", "dc3"
THREE = {DC1: [DC2, DC3], DC2: [DC1, DC3], DC3: [DC1, DC2]}


def mail(token: str) -> bytes:
    head = f"Message-ID: <{token}@example.org>\r\nContent-Type: application/octet-stream\r\n\r\n"
    return head.encode() + b"x" * 70 * (LARGE // 70 if "large" in token else 1) + b"\r\n"


def send(nodes: ServiceManager, sid: str, *tokens: str) -> set[str]:
    """Deliver mails at a node, and return their tokens."""
    deliver(nodes.nodes[sid], [mail(token) for token in tokens], ["alice"])
    return set(tokens)


def check_mail(nodes: ServiceManager, sids: Collection[str], tokens: Collection[str]) -> None:
    """Check that these nodes are equal, that each shows exactly this mail, and has all of it on its own disk."""
    nodes.replicator("status", "--wait-equal", "2m", *nodes.options(*sids))
    for sid in sids:
        assert shown(nodes, sid) == set(tokens)
        nodes.replicator("scrub", *nodes.options(sid))


def shown(nodes: ServiceManager, sid: str) -> set[str]:
    """Return the tokens of the mails that a client sees at a node now."""
    client = log_in(nodes.nodes[sid], "alice")
    tokens = {message.token for message in Cache(sid).select(client)}
    client.logout()
    return tokens


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), "utf-8")


def start(nodes: ServiceManager, *sids: str) -> None:
    for sid in sids:
        nodes.nodes[sid].launch()
    for sid in sids:
        nodes.nodes[sid].wait_ready()
        nodes.replicator("health", "--wait", "2m", *nodes.options(sid))


@pytest.mark.long
def test_one_node_grows_to_three(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, ["alice"], {DC1: [], DC2: [DC1], DC3: [DC1, DC2]}, SHORT_TIMEOUTS) as nodes:
        start(nodes, DC1)
        tokens = send(nodes, DC1, "small", "large")

        nodes.script("add-peer.sh", *nodes.options(DC1)[1:], DC2, nodes.address(DC2))
        nodes.script("join.sh", str(nodes.config(DC2)), *nodes.options(DC1))
        assert shown(nodes, DC2) == tokens
        tokens |= send(nodes, DC2, "second", "large-second")
        check_mail(nodes, [DC1, DC2], tokens)

        again = nodes.script("join.sh", str(nodes.config(DC2)), *nodes.options(DC1), code=1)
        assert "join.sh is for nodes that have nothing" in again

        for here, other in ((DC1, DC2), (DC2, DC1)):
            nodes.script("add-peer.sh", str(nodes.config(here)), DC3, nodes.address(DC3), *nodes.options(other))
        nodes.script("join.sh", str(nodes.config(DC3)), *nodes.options(DC1, DC2))
        assert shown(nodes, DC3) == tokens
        tokens |= send(nodes, DC3, "third")
        check_mail(nodes, [DC1, DC2, DC3], tokens)
        nodes.replicator("config", "check", *(str(nodes.config(sid)) for sid in nodes.nodes))


def test_peer_that_is_there_already_is_not_added_again(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, ["alice"], THREE) as nodes:
        before = nodes.config(DC1).read_text("utf-8")
        assert "dc2" in nodes.script("add-peer.sh", str(nodes.config(DC1)), DC2, nodes.address(DC2), code=2)
        assert (nodes.config(DC1).read_text("utf-8"), nodes.asked) == (before, [])
        assert not list(tmp_path.glob("*.new"))


@pytest.mark.long
def test_dead_node_is_replaced_under_its_name(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, ["alice"], THREE, SHORT_TIMEOUTS) as nodes:
        start(nodes, DC1, DC2, DC3)
        tokens = send(nodes, DC3, "before", "large")
        nodes.replicator("status", "--wait-equal", "2m", *nodes.options(DC1, DC2, DC3))
        nodes.nodes[DC3].kill()
        shutil.rmtree(nodes.nodes[DC3].data)
        tokens |= send(nodes, DC1, "meanwhile")

        said = nodes.script("join.sh", str(nodes.config(DC3)), *nodes.options(DC1, DC2))
        assert re.search("dc3 is healthy\\n(.*\\n)*The 3 nodes show the same state", said)
        assert shown(nodes, DC3) == tokens
        tokens |= send(nodes, DC3, "after")
        check_mail(nodes, [DC1, DC2, DC3], tokens)


@pytest.mark.long
def test_data_centre_is_moved_and_senders_notice_nothing(tmp_path: Path) -> None:
    """A new node, dc3, comes in the place of dc1."""
    peers = {DC1: [DC2], DC2: [DC1], DC3: [DC1, DC2]}
    with ServiceManager(tmp_path, ["alice"], peers, SHORT_TIMEOUTS) as nodes:
        for text, more in (("[node]\n", '[node]\nremoved = ["dc9"]\n'), ("[[peer]]\n", "# Near\n[[peer]] # here\n")):
            replace(nodes.config(DC2), text, more)
        replace(nodes.config(DC2), "[users]", "# The cluster's users\n[users]")
        start(nodes, DC1, DC2)
        with BalancedSender(list(nodes.nodes.values()), "alice") as sender:
            sender.wait()
            for here, other in ((DC1, DC2), (DC2, DC1)):
                nodes.script("add-peer.sh", str(nodes.config(here)), DC3, nodes.address(DC3), *nodes.options(other))
            nodes.script("join.sh", str(nodes.config(DC3)), *nodes.options(DC1, DC2))
            sender.wait()
            runs = nodes.script("forget-peer.sh", str(nodes.config(DC2)), DC1, *nodes.options(DC3), code=1)
            assert "dc1 still runs" in runs
            said = nodes.script("leave.sh", str(nodes.config(DC1)), *nodes.options(DC2, DC3))
            assert re.search("dc1 can be stopped\\n(.*\\n)*The 3 nodes show the same state", said)
            assert nodes.asked[-1] == "disable --now mail-replicator@dc1"
            for here, other in ((DC2, DC3), (DC3, DC2)):
                nodes.script("forget-peer.sh", str(nodes.config(here)), DC1, *nodes.options(other))
            sender.wait()
        assert set(sender.accepted.values()) == {DC1, DC2, DC3}
        check_mail(nodes, [DC2, DC3], sender.accepted)

        at_dc2, at_dc3 = (nodes.config(sid).read_text("utf-8") for sid in (DC2, DC3))
        assert '[node]\nremoved = ["dc1", "dc9"]\nid = "dc2"\n' in at_dc2
        assert re.search(r'# Near\n# The cluster\'s users\n\[users\]\n(.*\n)*\n\[\[peer\]\]\nid = "dc3"\n', at_dc2)
        assert '[node]\nremoved = ["dc1"]\nid = "dc3"\n' in at_dc3
        assert 'id = "dc1"' not in at_dc2 + at_dc3
        unknown = nodes.script("forget-peer.sh", str(nodes.config(DC2)), DC1, *nodes.options(DC3), code=1)
        assert "does not know dc1" in unknown


@pytest.mark.long
def test_all_nodes_but_one_are_lost(tmp_path: Path) -> None:
    with ServiceManager(tmp_path / "nodes", ["alice"], THREE, SHORT_TIMEOUTS) as nodes:
        start(nodes, DC1, DC2, DC3)
        tokens = send(nodes, DC1, "before", "large")
        nodes.replicator("status", "--wait-equal", "2m", *nodes.options(DC1, DC2, DC3))
        for sid in (DC1, DC2):
            nodes.nodes[sid].kill()
            shutil.rmtree(nodes.nodes[sid].data)
        tokens |= send(nodes, DC3, "alone", "large-alone")

        backup = tmp_path / "backup"
        nodes.script("last-node.sh", str(nodes.config(DC3)), str(backup))
        nodes.script("join.sh", str(nodes.config(DC1)), *nodes.options(DC3))
        nodes.script("join.sh", str(nodes.config(DC2)), *nodes.options(DC1, DC3))
        check_mail(nodes, [DC1, DC2, DC3], tokens)

        for node in nodes.nodes.values():
            node.stop()
            shutil.rmtree(node.data)
        nodes.replicator("restore", "--from", str(backup), *nodes.options(DC3))  # the backup is all that is left
        nodes.nodes[DC3].launch("--new-cluster")
        nodes.nodes[DC3].wait_ready()
        nodes.script("join.sh", str(nodes.config(DC1)), *nodes.options(DC3))
        check_mail(nodes, [DC1, DC3], tokens)


@pytest.mark.long
def test_split_brain_heals_by_itself(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, ["alice"], {DC1: [DC2], DC2: [DC1]}, SHORT_TIMEOUTS) as nodes:
        line = nodes.proxied(DC1, DC2)
        start(nodes, DC1, DC2)
        tokens = send(nodes, DC1, "before")
        nodes.replicator("status", "--wait-equal", "2m", *nodes.options(DC1, DC2))
        line.cut()
        for sid in (DC1, DC2):
            tokens |= send(nodes, sid, f"at-{sid}")
        apart = nodes.script("look.sh", "alice", "INBOX", *nodes.options(DC1, DC2))
        assert "Nodes that do not reach each other: dc1 and dc2." in apart
        assert len(re.findall(r"  dc[12]  cannot be asked: ", apart)) == 2
        line.mend()

        check_mail(nodes, [DC1, DC2], tokens)
        joined = nodes.script("look.sh", "alice", "INBOX", *nodes.options(DC1, DC2))
        assert "The 2 nodes show the same state." in joined
        assert len(re.findall(r"  dc[12]  shows the same", joined)) == 2
        assert len(re.findall(r"  merge: ", joined)) == 2  # one entry, in both logs


@pytest.mark.long
def test_all_nodes_are_upgraded_without_a_failed_delivery(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with ServiceManager(tmp_path / "nodes", ["alice"], THREE, SHORT_TIMEOUTS) as nodes:
        start(nodes, DC1, DC2, DC3)
        before = {sid: node.pid for sid, node in nodes.nodes.items()}
        with BalancedSender(list(nodes.nodes.values()), "alice") as sender:
            for sid in nodes.nodes:
                sender.wait()
                others = nodes.options(*(other for other in nodes.nodes if other != sid))
                said = nodes.script("restart.sh", str(nodes.config(sid)), *others, INSTALL=f"echo {sid} >>{installed}")
                assert re.search(rf"{sid} can be stopped\n(.*\n)*{sid} is healthy\n\Z", said)
            sender.wait()
        assert not {node.pid for node in nodes.nodes.values()} & set(before.values())
        assert installed.read_text("utf-8").split() == [DC1, DC2, DC3]
        check_mail(nodes, [DC1, DC2, DC3], sender.accepted)


@pytest.mark.long
def test_node_is_not_restarted_while_another_one_is_away(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, ["alice"], THREE, SHORT_TIMEOUTS) as nodes:
        start(nodes, DC1, DC2, DC3)
        nodes.nodes[DC3].stop()
        said = nodes.script("restart.sh", str(nodes.config(DC1)), *nodes.options(DC2, DC3), code=1, WAIT="1s")
        assert "dc3: " in said
        said = nodes.script("leave.sh", str(nodes.config(DC1)), *nodes.options(DC2, DC3), code=1, WAIT="5s")
        assert "dc1 takes new clients again" in said
        assert nodes.asked == []


def test_page_names_all_scripts_and_their_variables() -> None:
    page = PAGE.read_text("utf-8")
    for script in SCRIPTS.glob("*.sh"):
        assert f"](../deploy/procedures/{script.name})" in page
        for variable in re.findall(r"\[(\w+)=", script.read_text("utf-8")):
            assert f"`{variable}`" in page


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="scripts are not checked: there is no shellcheck")
def test_scripts_are_sound() -> None:
    scripts = sorted(SCRIPTS.glob("*.sh"))
    assert len(scripts) == len({*SCRIPTS.iterdir()})
    subprocess.run(["shellcheck", "--shell=sh", *scripts], check=True)


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_usage_is_told(script: Path) -> None:
    assert len(script.read_text("utf-8").splitlines()) <= 40
    ended = subprocess.run([script], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert re.search(rf"usage: (\[\w+=\S+\] )*{script.name} (CONFIG|USER)", ended.stderr)
