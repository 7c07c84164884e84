"""Backups of a real node, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from replicator.backup import database
from replicator.backup.errors import BackupError
from replicator.backup.making import back_up as make_backup
from replicator.backup.places import Directory
from replicator.store.db import schema
from tests.backup.node_files import LARGE, Backup, Invoke, NodeFiles, mail
from tests.earlier_databases.write import DIRECTORY


def files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def manifest(backup: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (backup / "manifest.jsonl").read_text("utf-8").splitlines()[:-1]]


def rewrite(backup: Path, lines: list[dict[str, object]]) -> None:
    """Write the manifest anew, under a hash that fits."""
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (backup / "manifest.jsonl").write_text(f"{text}{hashlib.sha256(text.encode()).hexdigest()}\n", "utf-8")


def test_backup_is_restored_to_an_empty_machine(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path
) -> None:
    before, target = node.shown(), tmp_path / "backup"
    made = back_up(target)
    assert (made["node"], made["files"], made["attachments"], made["expunged"], made["lacking"]) == ("dc1", 5, 2, 0, [])
    head, *listed = manifest(target)
    assert (head["node"], head["cluster"], head["schema"]) == ("dc1", "mail", schema.SCHEMA_VERSION)
    assert {str(line["name"]) for line in listed} | {"manifest.jsonl"} == files_in(target)
    assert made["size_bytes"] == sum((target / str(line["name"])).stat().st_size for line in listed)
    for name in ("users.passwd", "aliases"):
        node.config_file.with_name(name).unlink()
    shutil.rmtree(node.data)
    done = invoke("restore", "--from", target, "--config", node.config_file, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["is_in_place"], told["set_aside"], told["lacking"], told["kept"]) == (True, None, 0, [])
    assert (node.shown(), node.broken_attachments()) == (before, [])
    assert node.query("SELECT sid, begun FROM identity") == [("dc1", 0)]
    assert node.config_file.with_name("users.passwd").read_text("utf-8") == "alice:{PLAIN}bench\n"
    assert node.config_file.with_name("aliases").read_text("utf-8") == "postmaster: alice\n"
    node.deliver(mail("after"))
    assert len(node.shown()) == len(before) + 1


def test_what_is_made_is_for_its_owner_alone(back_up: Backup, tmp_path: Path) -> None:
    back_up(tmp_path / "backup")
    modes = {
        path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "backup", *(tmp_path / "backup").rglob("*"))
    }
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_any_damage_is_found_and_nothing_changes(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    back_up(target)
    before = node.shown()
    config = ("--config", node.config_file)
    assert invoke("restore", "--from", target, "--check", *config).exit_code == 0
    for name in sorted(files_in(target)):
        sound = (target / name).read_bytes()
        for at in (0, len(sound) // 2, len(sound) - 1):
            (target / name).write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
            done = invoke("restore", "--from", target, "--check", *config)
            assert (done.exit_code, "damaged" in done.stderr) == (1, True), (name, at, done.stderr)
        done = invoke("restore", "--from", target, "--replace", *config)
        assert (done.exit_code, "damaged" in done.stderr) == (1, True), (name, done.stderr)
        (target / name).unlink()
        assert invoke("restore", "--from", target, "--replace", *config).exit_code == 1
        (target / name).write_bytes(sound)
        assert (node.shown(), node.broken_attachments()) == (before, [])
    assert {path.name for path in node.data.glob("[nr]*.*")} == {"node.db", "node.db.lock"}


def test_backup_of_another_node_or_version_is_refused(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    back_up(target)
    head, *files = manifest(target)
    for change, reason in (
        ({"node": "dc2"}, "restored as dc2 only"),
        ({"cluster": "other"}, "a backup of node dc1 in cluster other"),
        ({"schema": schema.SCHEMA_VERSION + 1}, "made by a newer version"),
        ({"format": 2}, "format 2"),
    ):
        rewrite(target, [{**head, **change}, *files])
        done = invoke("restore", "--from", target, "--replace", "--config", node.config_file)
        assert (done.exit_code, reason in done.stderr) == (1, True), done.stderr
    (target / "manifest.jsonl").unlink()
    done = invoke("restore", "--from", target, "--replace", "--config", node.config_file)
    assert (done.exit_code, "or an unfinished one" in done.stderr) == (1, True)


@pytest.mark.parametrize("file", sorted(DIRECTORY.glob("*.gz")), ids=lambda file: file.name)
def test_backup_of_an_earlier_version_is_brought_to_this_one(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path, file: Path
) -> None:
    shutil.rmtree(node.data)
    node.data.mkdir()
    (node.data / "node.db").write_bytes(gzip.decompress(file.read_bytes()))
    before = node.query("SELECT mailbox, uid, guid FROM by_uid ORDER BY mailbox, uid")
    made = back_up(tmp_path / "backup")
    assert int(str(manifest(tmp_path / "backup")[0]["schema"])) < schema.SCHEMA_VERSION
    shutil.rmtree(node.data)
    done = invoke("restore", "--from", tmp_path / "backup", "--config", node.config_file)
    assert done.exit_code == 0, done.output
    assert node.query("PRAGMA user_version") == [(schema.SCHEMA_VERSION,)]
    assert (node.query("SELECT mailbox, uid, guid FROM by_uid ORDER BY mailbox, uid"), made["lacking"]) == (before, [])


def test_database_of_another_node_is_not_backed_up(node: NodeFiles, invoke: Invoke, tmp_path: Path) -> None:
    text = node.config_file.read_text("utf-8").replace('"dc1"', '"dc2"\ndata = "dc1"')
    node.config_file.write_text(text, "utf-8")
    done = invoke("backup", "--to", tmp_path / "backup", "--config", node.config_file)
    assert (done.exit_code, "is the database of node dc1" in done.stderr) == (1, True)


def test_node_without_data_is_not_backed_up(node: NodeFiles, invoke: Invoke, tmp_path: Path) -> None:
    shutil.rmtree(node.data)
    done = invoke("backup", "--to", tmp_path / "backup", "--config", node.config_file)
    assert (done.exit_code, "there is no database" in done.stderr, node.data.exists()) == (1, True, False)


def test_place_must_be_empty_and_apart(node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path) -> None:
    def refused(to: Path) -> str:
        done = invoke("backup", "--to", to, "--config", node.config_file)
        assert done.exit_code == 1
        return done.stderr

    back_up(tmp_path / "backup")
    assert "holds a backup; name a new directory" in refused(tmp_path / "backup")
    (tmp_path / "backup" / "manifest.jsonl").rename(tmp_path / "backup" / "manifest.jsonl.unfinished")
    assert "is being made, or was interrupted" in refused(tmp_path / "backup")
    assert "is not empty: there is 'dc1.toml'" in refused(node.config_file.parent) or "'aliases'" in refused(
        node.config_file.parent
    )
    assert "name a directory on another disk" in refused(node.data / "backup")
    assert not (node.data / "backup").exists()
    assert (tmp_path / "backup" / "node.db").exists()


def test_data_that_are_there_are_set_aside_on_request(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path
) -> None:
    target, before = tmp_path / "backup", node.shown()
    back_up(target)
    node.deliver(mail("later"), mail("later and large", LARGE))
    later = node.shown()
    node.config_file.with_name("aliases").write_text("postmaster: bob\n", "utf-8")
    done = invoke("restore", "--from", target, "--config", node.config_file)
    assert (done.exit_code, "give `--replace`" in done.stderr) == (1, True)
    assert node.shown() == later
    done = invoke("restore", "--from", target, "--replace", "--config", node.config_file, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["kept"] == [str(node.config_file.with_name("aliases"))]
    assert node.config_file.with_name("aliases").read_text("utf-8") == "postmaster: bob\n"
    assert (node.shown(), node.broken_attachments()) == (before, [])
    node.deliver()  # which sweeps nothing yet
    [aside] = node.data.glob("replaced.*")
    assert told["set_aside"] == str(aside)
    shutil.rmtree(node.data / "attachments")
    for name in ("attachments", "node.db"):
        (aside / name).rename(node.data / name)
    assert (node.shown(), node.broken_attachments()) == (later, [])


def test_damaged_database_is_set_aside_with_its_log(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path
) -> None:
    before = node.shown()
    back_up(tmp_path / "backup")
    (node.data / "node.db").write_bytes(b"garbage")
    (node.data / "node.db-wal").write_bytes(b"more of it")
    done = invoke("restore", "--from", tmp_path / "backup", "--replace", "--config", node.config_file, "--json")
    assert done.exit_code == 0, done.output
    aside = Path(json.loads(done.stdout)["set_aside"])
    assert ((aside / "node.db").read_bytes(), (aside / "node.db-wal").read_bytes()) == (b"garbage", b"more of it")
    assert node.shown() == before


def test_log_of_a_sound_database_is_not_left_behind(node: NodeFiles, small_disk: Path) -> None:
    source, moved = node.data / "node.db", small_disk / "node.db"
    with closing(schema.open_writer(source)) as connection:
        connection.execute("INSERT OR REPLACE INTO trial (id, filler) VALUES (1, RANDOMBLOB(700000))")
        for suffix in ("", "-wal"):
            shutil.copy(f"{source}{suffix}", f"{moved}{suffix}")
    state = os.statvfs(small_disk)
    with (small_disk / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, state.f_bavail * state.f_frsize)
    log = moved.with_name("node.db-wal").read_bytes()
    with pytest.raises(BackupError, match="cannot be brought into it: d"):
        database.fold_log(moved)
    assert moved.with_name("node.db-wal").read_bytes() == log
    (small_disk / "ballast").unlink()
    database.fold_log(moved)
    assert not moved.with_name("node.db-wal").exists()


def test_unfinished_rebuild_is_not_overridden(node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path) -> None:
    back_up(tmp_path / "backup")
    (node.data / "node.db.rebuild").touch()
    done = invoke("restore", "--from", tmp_path / "backup", "--replace", "--config", node.config_file)
    assert (done.exit_code, "a rebuild of this database was started" in done.stderr) == (1, True)


def test_attachments_on_another_disk_are_refused_before_anything_is_read(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path, small_disk: Path
) -> None:
    before = node.shown()
    back_up(tmp_path / "backup")
    (tmp_path / "backup" / "node.db").write_bytes(b"which would be found damaged")
    shutil.move(node.data / "attachments", small_disk / "attachments")
    (node.data / "attachments").symlink_to(small_disk / "attachments")
    done = invoke("restore", "--from", tmp_path / "backup", "--replace", "--config", node.config_file)
    assert (done.exit_code, "name its directory in `content.attachments`" in done.stderr) == (1, True), done.stderr
    assert "Invalid cross-device link" in done.stderr
    assert (node.shown(), node.broken_attachments(), list(node.data.glob("*restore*"))) == (before, [], [])
    with node.config_file.open("a", encoding="utf-8") as file:
        file.write(f'[content]\nattachments = "{small_disk / "attachments"}"\n')
    shutil.rmtree(tmp_path / "backup")
    back_up(tmp_path / "backup")
    done = invoke("restore", "--from", tmp_path / "backup", "--replace", "--config", node.config_file)
    assert (done.exit_code, node.shown(), node.broken_attachments()) == (0, before, []), done.output


def test_part_of_the_attachments_on_another_disk_ends_the_restore(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path, small_disk: Path
) -> None:
    before = node.shown()
    back_up(tmp_path / "backup")
    part = contents_of(node)[0].parents[2]
    shutil.move(part, small_disk / part.name)
    part.symlink_to(small_disk / part.name)
    done = invoke("restore", "--from", tmp_path / "backup", "--replace", "--config", node.config_file)
    assert (done.exit_code, "the disk: [Errno 18] Invalid cross-device link" in done.stderr) == (1, True), done.stderr
    assert (node.shown(), node.broken_attachments(), list(node.data.glob("*restore*"))) == (before, [], [])


def test_directory_of_attachments_elsewhere(node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path) -> None:
    (node.data / "attachments").rename(tmp_path / "shared")
    with node.config_file.open("a", encoding="utf-8") as file:
        file.write(f'[content]\nattachments = "{tmp_path / "shared"}"\n')
    before = node.shown()
    assert back_up(tmp_path / "backup")["attachments"] == 2
    assert "name a directory on another disk" in invoke(
        "backup", "--to", tmp_path / "shared" / "backup", "--config", node.config_file
    ).stderr  # fmt: skip
    shutil.rmtree(tmp_path / "shared")
    done = invoke("restore", "--from", tmp_path / "backup", "--replace", "--config", node.config_file)
    assert done.exit_code == 0, done.output
    assert (node.shown(), node.broken_attachments()) == (before, [])
    assert not list(node.data.glob("attachments*"))


# ---- while the node goes on


def contents_of(node: NodeFiles) -> list[Path]:
    return sorted((node.data / "attachments").glob("*/*/*/content.*"))


def test_attachments_that_are_removed_meanwhile_are_left_out(node: NodeFiles, invoke: Invoke, tmp_path: Path) -> None:
    gone = contents_of(node)[0]
    digits = gone.parent.parent.parent.name + gone.parent.parent.name + gone.parent.name

    def expunge(_done: int, _all: int) -> None:
        """Do as the node does once nothing refers to an attachment any more."""
        if gone.exists():
            node.query("DELETE FROM attachment WHERE hash = ?", bytes.fromhex(digits))
            shutil.rmtree(gone.parent)

    made = make_backup(node.config, Directory(tmp_path / "backup"), expunge)
    assert (made.attachments, made.expunged, made.lacking) == (1, 1, [])
    shutil.rmtree(node.data)
    done = invoke("restore", "--from", tmp_path / "backup", "--config", node.config_file, "--json")
    assert (done.exit_code, json.loads(done.stdout)["lacking"]) == (0, 1), done.output
    assert node.broken_attachments() in ([digits], [digits] * 2)  # which a scrub fetches from other nodes


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"other")], ids=["missing", "damaged"])
def test_attachments_that_the_node_itself_lacks_are_told(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    before, harmed = node.shown(), contents_of(node)[0]
    harm(harmed)
    made = back_up(tmp_path / "backup", exit_code=1)
    assert (made["attachments"], made["expunged"]) == (1, 0)
    assert made["lacking"] == ["".join(harmed.parts[-4:-1])]
    done = invoke("backup", "--to", tmp_path / "another", "--config", node.config_file)
    assert (done.exit_code, "run `replicator scrub`" in done.stderr) == (1, True)
    assert invoke("restore", "--from", tmp_path / "backup", "--replace", "--config", node.config_file).exit_code == 0
    assert node.shown() == before


@pytest.fixture
def busy(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    """A connection as the node's own, while the database is copied in small steps."""
    monkeypatch.setattr(database, "STEP_BYTES", 8 * schema.PAGE_BYTES)
    with closing(schema.open_writer(node.data / "node.db")) as connection:
        yield connection


def test_copy_is_of_one_moment_and_ends_while_the_node_writes(
    node: NodeFiles, busy: sqlite3.Connection, tmp_path: Path
) -> None:
    (tmp_path / "copy").touch()
    steps: list[int] = []

    def write(done_bytes: int) -> None:
        assert not steps or done_bytes > steps[-1], "the copy begins again with each change"
        steps.append(done_bytes)
        busy.execute("INSERT INTO doomed (hash) VALUES (RANDOMBLOB(32))")

    database.copy(node.data / "node.db", tmp_path / "copy", 1 << 30, write)
    assert len(steps) > 10
    with closing(database.opened_copy(tmp_path / "copy")) as copied:
        assert copied.execute("SELECT COUNT(*) FROM doomed").fetchone() == (0,)
        assert copied.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_backup_gives_up_before_the_log_fills_the_disk(
    node: NodeFiles, busy: sqlite3.Connection, tmp_path: Path
) -> None:
    (tmp_path / "copy").touch()

    def write(_done_bytes: int) -> None:
        busy.execute("INSERT OR REPLACE INTO trial (id, filler) VALUES (1, RANDOMBLOB(200000))")

    with pytest.raises(BackupError, match="so that the node has room"):
        database.copy(node.data / "node.db", tmp_path / "copy", 1 << 20, write)
    busy_pages, log_pages, moved = busy.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert (busy_pages, log_pages, moved) == (0, 0, 0), "the backup still holds the log"


# ---- disks that fill up


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("a small file system is left out: mounting it needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "backup-test", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_backup_begins_only_if_there_is_room(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path, small_disk: Path
) -> None:
    node.query("INSERT OR REPLACE INTO trial (id, filler) VALUES (1, RANDOMBLOB(4000000))")
    done = invoke("backup", "--to", small_disk / "backup", "--config", node.config_file)
    assert (done.exit_code, "has 2 MiB free, and the backup takes about" in done.stderr) == (1, True), done.stderr
    assert not files_in(small_disk)
    back_up(tmp_path / "backup")
    text = node.config_file.read_text("utf-8").replace('"dc1"', f'"dc1"\ndata = "{small_disk / "dc1"}"')
    node.config_file.write_text(text, "utf-8")
    done = invoke("restore", "--from", tmp_path / "backup", "--config", node.config_file)
    assert (done.exit_code, "what the backup has takes about" in done.stderr) == (1, True), done.stderr
    assert files_in(small_disk) <= {"dc1/node.db.lock"}


@pytest.mark.parametrize("is_copied", [False, True], ids=["database", "attachments"])
def test_disk_that_fills_up_meanwhile_keeps_nothing_of_the_backup(
    node: NodeFiles, small_disk: Path, monkeypatch: pytest.MonkeyPatch, *, is_copied: bool
) -> None:
    monkeypatch.setattr(database, "STEP_BYTES", 8 * schema.PAGE_BYTES)
    ballast, fill_at = small_disk / "ballast", (node.data / "node.db").stat().st_size if is_copied else 1

    def fill(done_bytes: int, _all_bytes: int) -> None:
        if done_bytes >= fill_at and not ballast.exists():
            state = os.statvfs(small_disk)
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, state.f_bavail * state.f_frsize)

    with pytest.raises((OSError, sqlite3.Error), match=r"No space left|disk is full"):
        make_backup(node.config, Directory(small_disk / "backup"), fill)
    assert files_in(small_disk) == {"ballast"}
