from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sized
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from click.testing import Result

from replicator.cli.api.client import APPLY, RESYNC, NodeClient, TaskKind
from replicator.cli.commands.repair import apply as command
from replicator.cli.plans import apply_report
from replicator.cli.plans.plan_files import Plan
from replicator.cli.target import parse_url
from replicator.replication.convergence.fork_scheduler import ForkScheduler
from replicator.runtime.environment import wall_clock_ms
from replicator.store.db import queries
from replicator.tasks import ApplyStatus, PlannedMailbox
from resync.plan import MANIFEST
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode
from tests.cli.served_pair import ServedPair, served_pair
from tests.inventory.planning import SCHEMA, Head, Row, planned, write_plan
from tests.replication.cluster import USER, Cluster, until

NODES = ("dc1", "dc2")
NOTHING: dict[str, Head] = {"dc1": None, "dc2": None}
NO_SETTLE = ("--settle", "0s")


async def _fork(nodes: Cluster) -> None:
    """Fork INBOX, and create a folder with mail at dc2, which dc1 will get by the log."""
    await nodes["dc1"].save("common")
    await nodes.converged()
    nodes.isolate("dc2")
    await nodes.linked(["dc1"], ["dc2"])
    for node in nodes.all():
        await node.save(f"at {node.sid}")
    await nodes["dc2"].mail.create_folder(USER, "Work")
    await nodes["dc2"].save("work", "Work")


async def _relink(nodes: Cluster) -> None:
    nodes.rejoin("dc2")
    await nodes.linked()
    one, other = nodes.all()
    await until(lambda: one.store.context == other.store.context)


async def _rows(nodes: Cluster) -> list[Row]:
    """Return a plan's row for each mailbox and for the folder tree, which comes last."""
    shown = [
        {chain.id: chain for chain in await node.store.read(partial(queries.chains_of, user=None))}
        for node in nodes.all()
    ]
    known = shown[0] | shown[1]
    heads: dict[bytes, dict[str, Head]] = {
        chain: {sid: here[chain].head if chain in here else None for sid, here in zip(NODES, shown, strict=True)}
        for chain in known
    }
    rows = [planned(chain.user, chain.id, chain.uidvalidity, heads[chain.id]) for chain in known.values()]
    return sorted(rows, key=lambda row: (row["uidvalidity"] == 0, row["mailbox"]))


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedPair]:
    """Two nodes with a forked INBOX, which the fork scheduler does not merge."""
    monkeypatch.setattr(ForkScheduler, "_note_commit", lambda *_: None)
    with served_pair(tmp_path / "pair") as made:
        made.do(_fork)
        made.do(_relink)
        yield made


@pytest.fixture
def plan(pair: ServedPair, tmp_path: Path) -> Path:
    """A plan of INBOX, which has forked, and of the tree and another mailbox, which are equal."""
    [*mailboxes, tree] = pair.do(_rows)
    return write_plan(tmp_path / "plan", NODES, {"dc1": mailboxes, "dc2": [tree]})


def document(result: Result) -> dict[str, object]:
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def lines(result: Result) -> list[str]:
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def digests(pair: ServedPair, sid: str) -> dict[str, str]:
    return pair.do(lambda nodes: nodes[sid].digests())


def one_row(**changes: object) -> Row:
    return {**planned(USER, b"\1" * 16, 7, NOTHING), **changes}


# ---- valid plans ---------------------------------------------------------------------------------------------------


def test_apply_makes_mailboxes_equal_and_a_second_run_changes_nothing(
    pair: ServedPair, plan: Path, invoke: Invoke
) -> None:
    before = [digests(pair, sid) for sid in NODES]
    told = invoke("apply", plan, "--dry-run", "--url", pair.url, *NO_SETTLE)
    assert (told.exit_code, told.stderr) == (1, "")
    assert {"2 equal were equal already", "1 repaired would be made equal (dry run)"} <= set(lines(told))
    assert [digests(pair, sid) for sid in NODES] == before
    result = invoke("apply", plan, "--url", pair.url, *NO_SETTLE)
    assert (result.exit_code, result.stderr) == (0, "")
    assert {"1 repaired made equal", "2 equal were equal already"} <= set(lines(result))
    assert lines(result)[-1] == "3 of 3 mailboxes and folder trees of the plan were processed"
    assert digests(pair, "dc1") == digests(pair, "dc2")
    assert sorted(pair.do(lambda nodes: nodes["dc1"].bodies()).values()) == ["at dc1", "at dc2", "common"]
    again = invoke("apply", plan, "--url", pair.url, "--json", *NO_SETTLE)
    assert (again.exit_code, again.stderr) == (0, "")
    assert document(again) == {
        "dry_run": False, "total": 3, "state": "done", "error": None, "done": 3, "outcomes": {"equal": 3}, "undone": [],
        "left_out": 0, "texts_lacking": None,
    }  # fmt: skip


def test_unrepaired_mailboxes_are_listed_with_the_reason(
    pair: ServedPair, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [inbox] = [row for row in pair.do(_rows) if len({head["origin"] for head in row["heads"]}) == 2]
    moved = planned(USER, inbox["mailbox"], inbox["uidvalidity"], {"dc1": ("dc1.a", 1), "dc2": ("dc2.a", 1)})
    damaged, nobodys = one_row(relation="damaged"), one_row(mailbox=b"\2" * 16, user=None, uidvalidity=None)
    plan = write_plan(tmp_path / "plan", NODES, {"dc1": [moved, damaged, nobodys], "dc2": []})
    result = invoke("apply", plan, "--url", pair.url, *NO_SETTLE)
    assert (result.exit_code, result.stderr) == (1, "")
    shown = " ".join(result.stdout.split())
    assert "moved alice INBOX changed since it was compared, at dc1, dc2" in shown
    assert f"damaged alice {'01' * 16} the plan says that it is damaged" in shown
    assert "it has no head in any inventory" in shown
    assert {
        "1 moved have changed since they were compared",
        "2 damaged left alone: run `replicator check --repair`",
    } <= set(lines(result))
    monkeypatch.setattr(apply_report, "UNDONE_MAX", 1)
    report = document(invoke("apply", plan, "--url", pair.url, "--json", *NO_SETTLE))
    assert (report["done"], report["left_out"], report["outcomes"]) == (3, 2, {"damaged": 2, "moved": 1})


def test_apply_sends_batches_and_obeys_only_master(
    pair: ServedPair, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "HEADS_MAX", 14)
    rows = [planned(USER, bytes([number]) * 16, 7, NOTHING) for number in range(250)]
    plan = write_plan(tmp_path / "plan", NODES, {"dc1": rows[:20], "dc2": [*rows[20:], *pair.do(_rows)]})
    sent: list[int] = []
    start = NodeClient.start

    def noting(client: NodeClient, task: TaskKind[ApplyStatus], options: dict[str, Sized]) -> ApplyStatus:
        sent.append(len(options["mailboxes"]))
        return start(client, task, options)

    monkeypatch.setattr(NodeClient, "start", noting)
    report = document(invoke("apply", plan, "--only-master", "dc1", "--url", pair.url, "--json", *NO_SETTLE))
    assert (report["total"], report["outcomes"], sent) == (20, {"equal": 20}, [7, 7, 6])
    sent.clear()
    report = document(invoke("apply", plan, "--url", pair.url, "--json", *NO_SETTLE))
    assert (report["done"], report["outcomes"]) == (253, {"equal": 252, "repaired": 1})
    assert (sent[:-1], sent[-1]) == ([7] * 36 + [1], 0), "a last, empty batch waits for the bodies"
    assert report["texts_lacking"] == 0
    wrong = invoke("apply", plan, "--only-master", "dc9", "--url", pair.url)
    assert (wrong.exit_code, "dc9 is not a master in this plan; its masters are: dc1, dc2" in wrong.stderr) == (2, True)


def test_folder_trees_of_all_masters_are_applied_first(pair: ServedPair, tmp_path: Path) -> None:
    [*mailboxes, tree] = pair.do(_rows)
    plan = Plan(str(write_plan(tmp_path / "plan", NODES, {"dc1": mailboxes, "dc2": [tree]})), None)
    found = [one.uidvalidity for one in command._planned(plan, NODES) if isinstance(one, PlannedMailbox)]
    assert (len(found), found[0]) == (3, 0)


def test_interrupt_cancels_apply_at_the_node_and_a_second_run_succeeds(
    pair: ServedPair, plan: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_client: NodeClient, _task: TaskKind[ApplyStatus]) -> ApplyStatus:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(NodeClient, "follow", interrupted)
        result = invoke("apply", plan, "--rate", 1, "--url", pair.url, *NO_SETTLE)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: apply cancelled after ")
    again = invoke("apply", plan, "--url", pair.url, *NO_SETTLE)
    assert (again.exit_code, again.stderr) == (0, "")


def test_interrupt_while_apply_starts_cancels_it_at_the_node(
    pair: ServedPair, plan: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second interrupt ends the command at once."""
    start = NodeClient.start

    def interrupted(client: NodeClient, task: TaskKind[ApplyStatus], options: dict[str, object]) -> ApplyStatus:
        signal.raise_signal(signal.SIGINT)
        return start(client, task, options)

    def interrupted_twice(*_arguments: object) -> ApplyStatus:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it was not interrupted")

    before = signal.getsignal(signal.SIGINT)
    with NodeClient(parse_url(pair.url)) as client:
        monkeypatch.setattr(NodeClient, "start", interrupted)
        result = invoke("apply", plan, "--rate", 1, "--url", pair.url, *NO_SETTLE)
        assert result.stderr.startswith("Error: apply cancelled after ")
        assert client.follow(APPLY).state == "cancelled"
        monkeypatch.setattr(NodeClient, "start", interrupted_twice)
        assert invoke("apply", plan, "--url", pair.url, *NO_SETTLE).stderr == "Error: apply cancelled after 0 of 3\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_apply_waits_until_the_plan_is_older_than_settle(
    pair: ServedPair, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=slept.append))  # other threads sleep on
    now = wall_clock_ms()
    for name, taken_ms in (("now", now), ("long ago", now - 7_200_000), ("in the future", now + 7_200_000)):
        plan = write_plan(tmp_path / name, NODES, {"dc1": [one_row()]}, taken_ms=taken_ms)
        assert invoke("apply", plan, "--settle", "1h", "--url", pair.url).exit_code == 0
    assert (len(slept), 3000 < slept[0] < 3600, slept[1]) == (2, True, 3600)
    wrong = invoke("apply", tmp_path / "now", "--settle", "soon", "--url", pair.url)
    assert (wrong.exit_code, "expected a duration" in wrong.stderr) == (2, True)


def test_apply_fails_while_another_task_runs(pair: ServedPair, plan: Path, invoke: Invoke) -> None:
    with NodeClient(parse_url(pair.url)) as client:
        client.start(RESYNC, {"user": USER, "rate": 1})
        result = invoke("apply", plan, "--url", pair.url, *NO_SETTLE)
        client.cancel(RESYNC)
    assert result.exit_code == 1
    assert "a resync is already running here" in result.stderr
    assert "apply failed after 0 of 3" in result.stderr


# ---- invalid plans -------------------------------------------------------------------------------------------------


def test_plan_of_another_cluster_or_other_nodes_is_refused(pair: ServedPair, invoke: Invoke, tmp_path: Path) -> None:
    cluster = write_plan(tmp_path / "cluster", NODES, {}, cluster="other")
    result = invoke("apply", cluster, "--url", pair.url)
    assert (result.exit_code, "belongs to cluster 'mail', but the plan to 'other'" in result.stderr) == (1, True)
    nodes = write_plan(tmp_path / "nodes", ("dc2", "dc3"), {})
    result = invoke("apply", nodes, "--url", pair.url)
    assert (result.exit_code, "dc1 is not a node of the plan; use one of its nodes: dc2, dc3" in result.stderr) == (
        1,
        True,
    )


LACKING = pa.schema([one for one in SCHEMA if one.name != "heads"])
OTHER = pa.schema([pa.field("user", pa.int64()) if one.name == "user" else one for one in SCHEMA])
FLAT = pa.schema([pa.field("heads", pa.list_(pa.string())) if one.name == "heads" else one for one in SCHEMA])
FILE = "mailboxes/master=dc1/part-0.zstd.parquet"


@pytest.mark.parametrize(
    ("schema", "row", "why"),
    [
        (LACKING, one_row(), f"{FILE} has no column 'heads'; docs/spark.md"),
        (OTHER, one_row(user=1), f"{FILE}: column 'user' is of type int64, not string"),
        (FLAT, one_row(heads=["x"]), f"{FILE}: column 'heads' is of type list"),
        (SCHEMA, one_row(mailbox=b"short"), f"{FILE}: a mailbox's id must have 16 bytes"),
        (SCHEMA, one_row(uidvalidity=None), "has a user but no uidvalidity"),
        (SCHEMA, one_row(relation="?"), "its relation is '?', not one of behind, damaged, forked"),
        (SCHEMA, one_row(heads=one_row()["heads"][:1]), "heads must name each node of the plan once: dc1, dc2"),
        (SCHEMA, one_row(heads=one_row()["heads"][:1] * 2), "heads must name each node of the plan once"),
        (SCHEMA, one_row(heads=[{"node": "dc1", "origin": "dc1.a", "seq": None}]), "is not a head: a head has a node"),
    ],
)
def test_invalid_plan_files_are_refused(
    served: ServedNode, invoke: Invoke, tmp_path: Path, *, schema: pa.Schema, row: Row, why: str
) -> None:
    fields = [pa.field(field.name, field.type) for field in schema]
    plan = write_plan(tmp_path / "plan", NODES, {"dc1": [row]}, schema=pa.schema(fields))
    result = invoke("apply", plan, "--url", served.url, *NO_SETTLE)
    assert (result.exit_code, why in result.stderr, result.stderr.count("\n")) == (1, True, 1), result.stderr


INVALID_ROWS: dict[str, Row] = {
    "a number from 0": one_row(uidvalidity=1 << 33),
    "no colon, space or control": one_row(user="a b"),
    "\\x1b[2J": one_row(user="\x1b[2J"),
    "a head must be null or [origin, seq]": one_row(
        heads=planned(USER, b"", 7, {"dc1": ("dc1.a", 0), "dc2": None})["heads"]
    ),
    "not the id of that user's folder tree": one_row(uidvalidity=0),
}


def test_invalid_rows_are_reported_and_the_others_applied(pair: ServedPair, invoke: Invoke, tmp_path: Path) -> None:
    *mailboxes, tree = pair.do(_rows)
    plan = write_plan(tmp_path / "plan", NODES, {"dc1": [tree, mailboxes[0], *INVALID_ROWS.values(), *mailboxes[1:]]})
    result = invoke("apply", plan, "--url", pair.url, "--json", *NO_SETTLE)
    assert (result.exit_code, result.stderr) == (1, "")
    report = document(result)
    assert (report["state"], report["outcomes"]) == ("done", {"failed": 5, "repaired": 1, "equal": 2})
    told = json.dumps(report["undone"])
    assert [why for why in INVALID_ROWS if json.dumps(why)[1:-1] not in told] == []
    assert "\x1b" not in invoke("apply", plan, "--url", pair.url, *NO_SETTLE).stdout


def test_refusal_by_the_node_ends_apply_with_a_report(
    pair: ServedPair, plan: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of another version might do so."""
    monkeypatch.setattr("replicator.http.tasks.planned.PLANNED_MAX", 1)
    result = invoke("apply", plan, "--url", pair.url, *NO_SETTLE)
    assert (result.exit_code, "Usage" in result.stderr) == (1, False)
    assert "Error: apply failed after 0 of 3: 3 mailboxes are too many; send at most 1 in one request" in result.stderr


@pytest.mark.parametrize("number", ["1e999", "1" + "0" * 400, "NaN", "-1"])
def test_invalid_times_in_the_manifest_are_refused(pair: ServedPair, plan: Path, invoke: Invoke, number: str) -> None:
    manifest = (plan / MANIFEST).read_text()
    (plan / MANIFEST).write_text(manifest.replace('"taken_ms": 0', f'"taken_ms": {number}', 1))
    result = invoke("apply", plan, "--url", pair.url)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1), result.stderr
    assert f"{plan}/plan.json: " in result.stderr


def test_files_that_disappear_during_apply_are_reported(
    pair: ServedPair, plan: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens when a new audit overwrites the plan."""

    def settle(*_arguments: object) -> None:
        for file in plan.rglob("*.parquet"):
            file.unlink()

    monkeypatch.setattr(command, "_settle", settle)
    result = invoke("apply", plan, "--url", pair.url)
    assert result.exit_code == 1
    assert "Error: apply failed after 0 of 3: " in result.stderr
    assert "has disappeared: is the plan being made again?" in result.stderr


def test_nothing_of_an_incomplete_plan_is_sent(
    pair: ServedPair, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PLANNED_MAX", 1)
    [*mailboxes, tree] = pair.do(_rows)
    plan = write_plan(tmp_path / "plan", NODES, {"dc1": [tree, *mailboxes], "dc2": [one_row()]})
    (plan / "mailboxes/master=dc2/part-0.zstd.parquet").unlink()
    before = [digests(pair, sid) for sid in NODES]
    result = invoke("apply", plan, "--url", pair.url, *NO_SETTLE)
    assert (result.exit_code, "has 0 rows, but 1 by plan.json: the plan is incomplete" in result.stderr) == (1, True)
    assert "apply failed after 0 of 4" in result.stderr
    assert [digests(pair, sid) for sid in NODES] == before
    assert invoke("apply", plan, "--only-master", "dc1", "--url", pair.url, *NO_SETTLE).exit_code == 0


def test_missing_or_incomplete_plan_is_refused(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    def refused(why: str) -> None:
        result = invoke("apply", plan, "--url", served.url, *NO_SETTLE)
        assert (result.exit_code, result.stdout, why in result.stderr) == (1, "", True), result.stderr

    plan = tmp_path / "plan"
    refused(f"{plan}: there is no such directory")
    assert not plan.exists()
    plan.mkdir()
    refused(f"{plan} has no plan.json")
    (plan / MANIFEST).write_text("{}")
    refused(f"{plan}/plan.json: plan.json is not the manifest of a plan")
    (plan / MANIFEST).write_text(" " * (1 << 21))
    refused(f"{plan}/plan.json is larger than 1048576 bytes")
    manifest = write_plan(tmp_path / "other", NODES, {"dc1": [one_row()]}) / MANIFEST
    document = json.loads(manifest.read_text())
    (plan / MANIFEST).write_text(json.dumps({**document, "format": 2}))
    refused("its format is 2, but this program reads 1")
    (plan / MANIFEST).write_bytes(manifest.read_bytes())
    with_nothing = f"{plan}/mailboxes/master=dc1 has 0 rows, but 1 by plan.json: the plan is incomplete"
    refused(with_nothing)
    (plan / FILE).parent.mkdir(parents=True)
    (plan / FILE).write_bytes(b"PAR1 or not")
    refused(f"{plan}/{FILE} cannot be read as Parquet")


def test_apply_without_pyarrow_says_how_to_install_it(
    served: ServedNode, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = write_plan(tmp_path / "plan", NODES, {})
    monkeypatch.delitem(sys.modules, "replicator.cli.plans.plan_rows", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = invoke("apply", plan, "--url", served.url)
    told = "Error: pyarrow is not installed here: `pip install 'mail-replicator[inventory]'`\n"
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", told)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--rate", "0"], "--rate"),
        (["--endpoint", "https://h:443"], "leave it out"),
    ],
)
def test_wrong_usage(invoke: Invoke, tmp_path: Path, arguments: list[str], why: str) -> None:
    plan = write_plan(tmp_path / "plan", NODES, {})
    result = invoke("apply", plan, "--url", "http://127.0.0.1:1", *arguments)
    assert (result.exit_code, why in result.stderr) == (2, True)
