"""A whole audit, whose plan, summary and report have the planted differences and no others."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from protocol.values import Dot
from replicator.cli.plans.plan_files import Plan
from replicator.tasks import PlannedMailbox
from resync import plan
from resync.entry import tree_id
from resync.row import Row
from resync.state import MailboxState
from spark.audit import audit
from spark.job.jobs import place_of
from spark.reading import inventories
from spark.reading.inventories import InventoryError
from spark.report.summary import NodeSummary, PairSummary, UserSummary
from tests.effort import first
from tests.spark.clusters import fingerprint_sum
from tests.spark.writing import Record, head_record, message_record, pointers, write

SAME, BEHIND, FORKED, LACKING = (bytes([number]) * 16 for number in range(1, 5))
TREE, OTHER_TREE = tree_id("bob"), tree_id("alice")
USERS, CREATED, FOLDERS, LOST = (bytes([number]) * 16 for number in range(7, 11))


def message(uid: int, origin: str, flags: Mapping[str, tuple[int, str, bool]] | None = None) -> Row:
    dot = Dot(origin, uid)
    return Row(uid, dot, 0, f"{origin}-{uid}".encode().ljust(16), dot, uid, dict(flags or {}), 5, 6, bytes([uid]) * 32)


def state(context: Mapping[str, int], *rows: Row) -> MailboxState:
    top = max((row.uid for row in rows), default=0)
    return MailboxState(top + 1, top, dict(context), {row.uid: row for row in rows})


ONE, TWO = message(1, "a.x"), message(2, "a.x")
SEEN = ONE._replace(flags={"\\Seen": (9, "b", True)}, modseq=3)
AT_A = {
    SAME: state({"a.x": 2}, ONE, TWO),
    BEHIND: state({"a.x": 2}, ONE, TWO),
    FORKED: state({"a.x": 2}, ONE, TWO),
    LACKING: state({"a.x": 1}, ONE),
}
AT_B = {
    SAME: AT_A[SAME],
    BEHIND: state({"a.x": 1}, ONE),
    FORKED: state({"a.x": 1, "b.x": 3}, SEEN, message(2, "b.x"), message(3, "b.x")),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = {}
    for node, states in (("a", AT_A), ("b", AT_B)):
        trees = [tree(node), {**tree("a"), "mailbox": OTHER_TREE, "user": "alice"}]
        heads = [*(head(mailbox, one) for mailbox, one in states.items()), *trees]
        shown = [message_record(mailbox, row) for mailbox, one in states.items() for row in one.rows.values()]
        index = [record for record in pointers(shown) if (node, record["mailbox"]) != ("b", BEHIND)]
        folders = [folder(mailbox, f"Folder {mailbox[0]}") for mailbox in AT_A]
        place = tmp_path_factory.mktemp(node)
        write(place, node, {"heads": heads, "messages": shown, "guids": index, "folders": folders})
        found[node] = str(place)
    return found


def head(mailbox: bytes, one: MailboxState) -> Record:
    master = "b" if mailbox == FORKED else "a"
    last = max(one.rows.values(), key=lambda row: row.uid).dot
    return head_record(mailbox, one, last, stated_count=len(one.rows), stated_sum=fingerprint_sum(one), master=master)


def tree(node: str) -> Record:
    changes = {"mailbox": TREE, "user": "bob", "uidvalidity": 0, "digest": node.encode(), "messages": 0}
    return {
        **head(SAME, AT_A[SAME]),
        **changes,
        "context": [(f"{node}.t", 1)],
        "head_origin": f"{node}.t",
        "head_seq": 1,
    }


def folder(mailbox: bytes, name: str) -> Record:
    return {
        "mailbox": mailbox,
        "user": "alice",
        "name": name,
        "uidvalidity": 7,
        "deleted": False,
        "time": 1,
        "sid": "a",
    }


@pytest.fixture(scope="module")
def done(spark: SparkSession, places: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("audit")
    audit.audit(spark, places, str(to), overwrite=False, tell=lambda _: None)
    return to


def table(done: Path, name: str) -> list[dict[str, Any]]:
    return list(ds.dataset(done / name, partitioning="hive").to_table().to_pylist())


def test_plan_lists_differing_mailboxes_with_their_heads(done: Path) -> None:
    found = {row["mailbox"]: row for row in table(done, "mailboxes")}
    shared = {"user": "alice", "uidvalidity": 7, "uidvalidity_differs": False, "missing_on": []}
    assert found[BEHIND] == {
        "mailbox": BEHIND, **shared, "folder": "Folder 2", "relation": "behind", "master": "a",
        "heads": [{"node": "a", "origin": "a.x", "seq": 2}, {"node": "b", "origin": "a.x", "seq": 1}],
        "uidnext": 3, "highestmodseq": 2, "differing": 1,
    }  # fmt: skip
    assert found[FORKED] == {
        "mailbox": FORKED, **shared, "folder": "Folder 3", "relation": "forked", "master": "b",
        "heads": [{"node": "a", "origin": "a.x", "seq": 2}, {"node": "b", "origin": "b.x", "seq": 3}],
        "uidnext": 6, "highestmodseq": 4, "differing": 4,
    }  # fmt: skip
    assert found[LACKING] == {
        "mailbox": LACKING, **shared, "folder": "Folder 4", "relation": "behind", "master": "a", "missing_on": ["b"],
        "heads": [{"node": "a", "origin": "a.x", "seq": 1}, {"node": "b", "origin": None, "seq": None}],
        "uidnext": 2, "highestmodseq": 1, "differing": 1,
    }  # fmt: skip
    assert found[TREE] == {
        "mailbox": TREE, "user": "bob", "uidvalidity": 0, "folder": None, "relation": "forked", "master": "a",
        "uidvalidity_differs": False, "missing_on": [], "uidnext": None, "highestmodseq": None, "differing": 0,
        "heads": [{"node": "a", "origin": "a.t", "seq": 1}, {"node": "b", "origin": "b.t", "seq": 1}],
    }  # fmt: skip
    assert len(found) == 4


def test_apply_command_reads_the_plan(done: Path) -> None:
    found = Plan(str(done), None)
    named = {trees: list(found.mailboxes(found.manifest.mailboxes, trees=trees)) for trees in (True, False)}
    assert named[True] == [PlannedMailbox("bob", TREE.hex(), 0, {"a": Dot("a.t", 1), "b": Dot("b.t", 1)})]
    assert sorted(named[False], key=lambda one: one.mailbox) == [
        PlannedMailbox("alice", BEHIND.hex(), 7, {"a": Dot("a.x", 2), "b": Dot("a.x", 1)}),
        PlannedMailbox("alice", FORKED.hex(), 7, {"a": Dot("a.x", 2), "b": Dot("b.x", 3)}),
        PlannedMailbox("alice", LACKING.hex(), 7, {"a": Dot("a.x", 1), "b": None}),
    ]


def test_plan_lists_differing_messages_and_their_merged_rows(done: Path) -> None:
    found = {(row["mailbox"], row["guid"]): row for row in table(done, "messages")}
    nothing = {"missing_on": [], "expunged_on": [], "uid_conflict": False, "flags_differ": False, "damage": False,
               "only_modseq": False}  # fmt: skip
    seen = [{"flag": "\\Seen", "time": 9, "sid": "b", "set": True}]
    assert found[FORKED, ONE.guid] == {
        "mailbox": FORKED, "user": "alice", "guid": ONE.guid, **nothing, "flags_differ": True, "uid": 1, "modseq": 4,
        "flags": seen, "content_hash": ONE.content_hash, "master": "b",
    }  # fmt: skip
    assert found[FORKED, TWO.guid] == {
        "mailbox": FORKED, "user": "alice", "guid": TWO.guid, **nothing, "missing_on": ["b"], "uid_conflict": True,
        "uid": 4, "modseq": 4, "flags": [], "content_hash": TWO.content_hash, "master": "b",
    }  # fmt: skip
    assert found[BEHIND, TWO.guid]["missing_on"] == ["b"]
    assert found[LACKING, ONE.guid]["missing_on"] == ["b"]
    assert len(found) == 6


def test_plan_lists_wrong_index_rows(done: Path) -> None:
    (only,) = table(done, "indexes")
    assert only == {"mailbox": BEHIND, "guid": ONE.guid, "what": "missing", "uid": 1, "node": "b"}


def test_manifest_counts_the_rows_of_the_plan(done: Path) -> None:
    manifest = plan.manifest_from((done / plan.MANIFEST).read_bytes())
    assert manifest == plan.PlanManifest(
        "test", {sid: plan.Taken(f"{sid}.x", 0) for sid in "ab"}, {"a": 3, "b": 1}, 6, 1
    )


def test_the_tables_have_the_columns_of_their_format(done: Path) -> None:
    for name, columns in plan.TABLES.items():
        for file in (done / name).glob("*/*.parquet"):
            assert ds.dataset(file).schema.names == [column.name for column in columns]


def test_summary_counts_the_differences(done: Path) -> None:
    found = json.loads((done / audit.SUMMARY).read_bytes())
    assert found["relations"] == {"equal": 1, "behind": 2, "forked": 1}
    assert found["trees"] == {"equal": 1, "forked": 1}
    assert (found["mailboxes"], found["uidvalidity_differs"], found["only_on_some"]) == (4, 0, 1)
    assert found["differing"] == 6
    assert found["kinds"] == {
        "missing": 5, "expunged": 0, "uid_conflict": 2, "flags_differ": 1, "damage": 0, "only_modseq": 0,
    }  # fmt: skip
    assert found["plan"] == {"a": 3, "b": 1}
    assert [UserSummary(**one) for one in found["worst"]] == [UserSummary("alice", 3, 6), UserSummary("bob", 1, 0)]
    assert [PairSummary(**one) for one in found["pairs"]] == [PairSummary("a", "b", 3)]
    assert [NodeSummary(**one) for one in found["nodes"]] == [
        NodeSummary("a", 0, 4, 7, 0, 0, 2, 0, 0, {}),
        NodeSummary("b", 0, 3, 6, 0, 2, 3, 0, 0, {"missing": 1}),
    ]


def test_audit_writes_a_report(done: Path) -> None:
    assert "alice" in (done / audit.REPORT).read_text()


def contradictory_inventories(to: Path) -> dict[str, str]:
    """Write the inventories of two nodes that contradict each other in four mailboxes.

    The mailboxes differ in the user, in the head's UIDVALIDITY, in the folder's UIDVALIDITY, and by a lost row.
    """
    found = {}
    for node in ("a", "b"):
        is_second = node == "b"
        rows = {mailbox: [ONE, TWO] for mailbox in (SAME, USERS, CREATED, FOLDERS)} | {
            LOST: [ONE] if is_second else [ONE, TWO]
        }
        shown = [message_record(mailbox, row) for mailbox, some in rows.items() for row in some]
        heads = {mailbox: dict(head(mailbox, AT_A[SAME])) for mailbox in rows}
        folders = {mailbox: dict(folder(mailbox, f"Folder {mailbox[0]}")) for mailbox in rows}
        if is_second:
            heads[USERS]["user"], heads[CREATED]["uidvalidity"] = "mallory", 8
            folders[FOLDERS]["uidvalidity"] = 1031
        tables = {
            "heads": [*heads.values(), {**tree("a"), "mailbox": OTHER_TREE, "user": "alice"}],
            "folders": [*folders.values()],
        }
        write(to / node, node, {**tables, "messages": shown, "guids": pointers(shown)})
        found[node] = str(to / node)
    return found


@pytest.mark.long
def test_contradictory_rows_are_reported_as_damage_only(spark: SparkSession, tmp_path: Path) -> None:
    """The cases are two users or two UIDVALIDITYs of one mailbox, a lost row, and two folders under one head."""
    found = audit.audit(
        spark, contradictory_inventories(tmp_path), str(tmp_path / "out"), overwrite=False, tell=lambda _: None
    )
    assert (found.relations, found.trees, found.plan) == ({"equal": 2, "damaged": 3}, {"damaged": 1}, {})
    relations = {row["mailbox"]: row["relation"] for row in table(tmp_path / "out", "mailboxes")}
    assert relations == dict.fromkeys((USERS, CREATED, LOST, OTHER_TREE), "damaged")
    assert found.uidvalidity_differs == 2, "one of heads, and one of a folder of a mailbox that is equal"
    assert [node.expunged for node in found.nodes] == [0, 0]
    assert {kind: count for kind, count in found.kinds.items() if count} == {"damage": 1}
    (only,) = table(tmp_path / "out", "messages")
    assert (only["mailbox"], only["damage"], only["expunged_on"], only["uid"]) == (LOST, True, [], None)


@pytest.mark.parametrize("name", first(1, ["a%20b", "my mail", "größe", "a#b"]))
def test_inventories_are_read_from_directories_with_unusual_names(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    given = {node: place_of(place) for node, place in contradictory_inventories(tmp_path / name).items()}
    assert inventories.read(spark, given).nodes == ("a", "b")


def test_overwrite_spares_a_directory_that_holds_no_audit(spark: SparkSession, tmp_path: Path) -> None:
    places = contradictory_inventories(tmp_path)
    for to, why in (
        (tmp_path / "a", "holds annotations, which does not belong to an audit"),
        (tmp_path / "mail", "holds no audit"),
    ):
        (to / "mailboxes").mkdir(parents=True, exist_ok=True)
        (to / "mailboxes" / "letter").write_text("mine")
        with pytest.raises(InventoryError, match=why):
            audit.audit(spark, places, str(to), overwrite=True, tell=lambda _: None)
        assert (to / "mailboxes" / "letter").exists()
    assert list((tmp_path / "a" / "messages").iterdir())


def test_overwrite_removes_a_former_audit_only_after_reading_inventories(
    spark: SparkSession, places: dict[str, str], done: Path, tmp_path: Path
) -> None:
    former = tmp_path / "audit"
    shutil.copytree(done, former)
    with pytest.raises(InventoryError):
        audit.audit(spark, {**places, "b": str(tmp_path)}, str(former), overwrite=True, tell=lambda _: None)
    assert (former / plan.MANIFEST).exists()
    audit._check_room(spark, str(former), overwrite=True)
    audit._make_room(spark, str(former))
    assert {file.name for file in former.iterdir()} == {audit.UNFINISHED, f".{audit.UNFINISHED}.crc"}
    audit._check_room(spark, str(former), overwrite=True)
    assert not (done / audit.UNFINISHED).exists()


def test_former_audit_is_kept_without_overwrite(
    spark: SparkSession, places: dict[str, str], done: Path, tmp_path: Path
) -> None:
    before = (done / plan.MANIFEST).stat()
    with pytest.raises(InventoryError, match="is not empty; --overwrite replaces an earlier audit"):
        audit.audit(spark, places, str(done), overwrite=False, tell=lambda _: None)
    assert (done / plan.MANIFEST).stat() == before
    (tmp_path / "letters").write_text("mine")
    with pytest.raises(InventoryError, match="holds letters, which does not belong to an audit"):
        audit.audit(spark, places, str(tmp_path), overwrite=True, tell=lambda _: None)
    assert (tmp_path / "letters").read_text() == "mine"


def test_documented_columns_are_those_of_plan_tables() -> None:
    document = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in document.split("\n### ")[1:]}
    told = {table: re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE) for table, text in sections.items()}
    assert told == {table: [column[:2] for column in columns] for table, columns in plan.TABLES.items()}
