"""The users of a cluster: the same at all nodes, whatever becomes of links and disks."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator import user_table
from replicator.config import WhenShort
from replicator.errors import DurabilityError, InvalidNameError, UsersUnavailableError
from replicator.mail.annotations import USER_TABLE
from replicator.runtime.files.line_files import write_lines
from replicator.user_table import HEAD, LINE, ClusterUsers
from replicator.users import MailNames, UserDirectory, UserExistsError, UserUnknownError
from replicator.users.passwd_file.table import SECRET
from resync.entry import FolderAnnotate
from tests.replication.cluster import Cluster, Node, cluster, until

PLAIN = "{PLAIN}"


@asynccontextmanager
async def tables(nodes: Cluster, *sids: str) -> AsyncIterator[dict[str, ClusterUsers]]:
    """Yield the tables of these running nodes, which write their files."""
    async with trio.open_nursery() as nursery:
        made = {}
        for sid in sids:
            node = nodes[sid]
            made[sid] = ClusterUsers(node.mail, file_of(node), node.environment.run_in_thread)
            node.store.listeners.append(made[sid].note)
            nursery.start_soon(made[sid].run)
        yield made
        nursery.cancel_scope.cancel()


def file_of(node: Node) -> Path:
    return node.config.node.cluster_users


def shown(node: Node) -> list[str]:
    """Return the lines of the node's file but those that begin with `#`."""
    file = file_of(node)
    return [line for line in file.read_text().splitlines() if not line.startswith("#")] if file.exists() else []


async def all_show(nodes: Cluster, *lines: str) -> None:
    await until(lambda: all(shown(node) == list(lines) for node in nodes.all()))


async def test_a_change_is_in_the_file_of_every_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes, tables(nodes, "dc1", "dc2", "dc3") as users:
        await users["dc1"].add([b"bob:{PLAIN}first", b"Ann:{PLAIN}x:::::::quota_storage=1GiB"])
        assert shown(nodes["dc1"]) == ["Ann:{PLAIN}x:::::::quota_storage=1GiB", "bob:{PLAIN}first"]
        await all_show(nodes, *shown(nodes["dc1"]))
        assert file_of(nodes["dc2"]).read_bytes().startswith(HEAD)
        assert file_of(nodes["dc2"]).stat().st_mode & 0o777 == 0o600
        await users["dc2"].set_password("BOB", "{PLAIN}second")
        await users["dc3"].set_password("ann", "{PLAIN}y")
        await all_show(nodes, "Ann:{PLAIN}y:::::::quota_storage=1GiB", "bob:{PLAIN}second")
        directory = UserDirectory(file_of(nodes["dc3"]))
        assert await directory.verify("ann", "y")
        await users["dc1"].set_disabled("Ann", disabled=True)
        await all_show(nodes, "Ann:{PLAIN}y:::::::quota_storage=1GiB nologin", "bob:{PLAIN}second")
        assert not await directory.verify("ann", "y")
        await users["dc2"].set_disabled("ann", disabled=False)
        await all_show(nodes, "Ann:{PLAIN}y:::::::quota_storage=1GiB", "bob:{PLAIN}second")
        await users["dc3"].delete("ann")
        await users["dc1"].delete("bob")
        await all_show(nodes)
        assert directory.users() == []


async def test_each_user_is_as_the_last_change_says_once_parted_nodes_meet(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes, tables(nodes, "dc1", "dc2", "dc3") as users:
        await users["dc1"].add([b"ann:{PLAIN}0", b"bob:{PLAIN}0", b"eve:{PLAIN}0"])
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await users["dc3"].set_password("ann", "{PLAIN}3")
        await users["dc1"].set_password("bob", "{PLAIN}1")
        await users["dc3"].delete("eve")
        await users["dc3"].add([b"fay:{PLAIN}3"])
        await trio.sleep(1)
        await users["dc1"].set_password("ann", "{PLAIN}1")
        await users["dc3"].set_password("bob", "{PLAIN}3")
        await users["dc1"].add([b"fay:{PLAIN}1", b"gus:{PLAIN}1"])
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()
        await all_show(nodes, "ann:{PLAIN}1", "bob:{PLAIN}3", "fay:{PLAIN}1", "gus:{PLAIN}1")


async def test_a_change_needs_as_many_disks_as_any_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    refuse = WhenShort.REFUSE
    async with cluster(tmp_path, autojump_clock, 2, when_short=refuse) as nodes, tables(nodes, "dc1") as users:
        await nodes.stop("dc2")
        await nodes.linked(["dc1"])
        with pytest.raises(DurabilityError):
            await users["dc1"].add([b"ann:{PLAIN}0"])
        assert shown(nodes["dc1"]) == []


async def test_users_wait_at_a_node_that_does_not_know_them_yet(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        async with tables(nodes, "dc1") as users:
            await users["dc1"].add([b"ann:{PLAIN}0"])
            await nodes.converged()
        await nodes.stop("dc2")
        nodes.erase("dc2")
        await nodes.stop("dc1")
        await nodes.start("dc2")
        async with tables(nodes, "dc2"):
            await trio.sleep(60)
            with pytest.raises(UsersUnavailableError):
                UserDirectory(file_of(nodes["dc2"])).find("ann")
            await nodes.start("dc1")
            await until(lambda: shown(nodes["dc2"]) == ["ann:{PLAIN}0"])


async def test_impossible_changes_are_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, tables(nodes, "dc1") as users:
        table = users["dc1"]
        await table.add([b"ann:{PLAIN}0"])
        with pytest.raises(UserExistsError, match="'ann' already exists"):
            await table.add([b"bob:{PLAIN}0", b"ANN:{PLAIN}1"])
        with pytest.raises(UserUnknownError, match="no user 'bob'"):
            await table.set_password("bob", "{PLAIN}1")
        with pytest.raises(UserUnknownError, match="no user 'bob'"):
            await table.delete("bob")
        with pytest.raises(UserUnknownError, match="no user 'bob'"):
            await table.set_disabled("bob", disabled=True)
        for line, words in [
            (b"bob:{PLAIN}0\nroot:{PLAIN}x", "no line end"),
            (b"# bob", "a user's line is"),
            (b"b b:{PLAIN}0", "no colon, space"),
            (b"bob:{NO}0", "NO"),
            (b"bob:\xff", "not UTF-8"),
            (b"bob:{PLAIN}0:" + b"x" * 5000, "at most 4096 bytes"),
            (b"bob:{PLAIN}0:::::::quota_storage=much", "quota_storage"),
        ]:
            with pytest.raises(ValueError, match=words):
                await table.add([line])
        with pytest.raises(ValueError, match="twice"):
            await table.add([b"bob:{PLAIN}0", b"BOB:{PLAIN}1"])
        for hashed in ("{PLAIN}1\nroot:{PLAIN}x", "{PLAIN}1:::::::quota_storage=9GiB", "{PLAIN}\x01"):
            with pytest.raises(ValueError, match="no colon and no control"):
                await table.set_password("ann", hashed)
        assert shown(nodes["dc1"]) == ["ann:{PLAIN}0"]
        await table.add([b"ANN:{PLAIN}1"], replace=True)
        assert shown(nodes["dc1"]) == ["ANN:{PLAIN}1"]


async def test_a_rename_is_one_change_at_every_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes, tables(nodes, "dc1", "dc2", "dc3") as users:
        await users["dc1"].add([b"ann:{PLAIN}0", b"bob:{PLAIN}0:::::::nologin"])
        await all_show(nodes, "ann:{PLAIN}0", "bob:{PLAIN}0:::::::nologin")
        entries: list[list[int]] = []
        nodes["dc3"].store.listeners.append(
            lambda commit: entries.append(
                [len(each.values) for one in commit.applied for each in one.changes if isinstance(each, FolderAnnotate)]
            )
        )
        assert await users["dc2"].rename("ANN", "Anna") == "ann"
        await all_show(nodes, "anna:{PLAIN}0::::::user=ann", "bob:{PLAIN}0:::::::nologin")
        assert [each for each in entries if each] == [[2]], "both lines are in one entry"
        assert [await users[sid].names_of("Ann") for sid in ("dc1", "dc3")] == [["anna"], ["anna"]]
        for sid in ("dc1", "dc2", "dc3"):
            with pytest.raises(UserExistsError, match="'ann' is the user whose mail 'anna' opens"):
                await users[sid].add([b"ann:{PLAIN}1"])
            with pytest.raises(UserExistsError, match="'ann' is the user whose mail 'anna' opens"):
                await users[sid].rename("bob", "ann")
        with pytest.raises(UserExistsError, match="'anna' already exists"):
            await users["dc1"].rename("bob", "anna")
        with pytest.raises(UserUnknownError, match="no user 'ann'"):
            await users["dc1"].rename("ann", "eve")
        assert await users["dc3"].rename("anna", "annie") == "ann"
        await all_show(nodes, "annie:{PLAIN}0::::::user=ann", "bob:{PLAIN}0:::::::nologin")
        assert await users["dc1"].rename("annie", "ann") == "ann"
        await all_show(nodes, "ann:{PLAIN}0::::::", "bob:{PLAIN}0:::::::nologin")
        assert await users["dc2"].names_of("ann") == ["ann"]
        await users["dc1"].rename("ann", "anna")
        await users["dc1"].delete("anna")
        assert await users["dc1"].names_of("ann") == []
        await users["dc1"].add([b"ann:{PLAIN}1"])
        await all_show(nodes, "ann:{PLAIN}1", "bob:{PLAIN}0:::::::nologin")


async def test_a_user_who_is_renamed_on_one_side_has_one_mailbox_once_parted_nodes_meet(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes, tables(nodes, "dc1", "dc2", "dc3") as users:
        await users["dc1"].add([b"ann:{PLAIN}0", b"bob:{PLAIN}0"])
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await users["dc1"].rename("ann", "anna")
        await users["dc3"].set_password("bob", "{PLAIN}3")
        await trio.sleep(1)
        await users["dc3"].set_password("ann", "{PLAIN}3")
        await users["dc1"].rename("bob", "robert")
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()
        await all_show(nodes, "ann:{PLAIN}3", "anna:{PLAIN}0::::::user=ann", "robert:{PLAIN}0::::::user=bob")
        for sid in ("dc1", "dc3"):
            assert await users[sid].names_of("ann") == ["ann", "anna"]
            with pytest.raises(UserExistsError, match="whose mail 'robert' opens"):
                await users[sid].add([b"bob:*"])


async def test_log_ins_of_one_user_come_together_or_one_after_the_other(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, tables(nodes, "dc1") as users:
        table = users["dc1"]
        await table.add([b"team:*", b"ann:*::::::user=team"])
        await table.add([b"bob:*::::::user=team"])
        assert await table.names_of("team") == ["ann", "bob", "team"]
        await table.add([b"team:{PLAIN}1"], replace=True)
        await table.delete("team")
        with pytest.raises(UserExistsError, match="whose mail 'ann' opens"):
            await table.add([b"team:*"])
        await table.add([b"team:*", b"ann:*::::::user=ann", b"bob:*::::::user=bob"], replace=True)
        assert shown(nodes["dc1"]) == ["ann:*::::::user=ann", "bob:*::::::user=bob", "team:*"]
        assert [await table.names_of(name) for name in ("team", "ann")] == [["team"], ["ann"]]


async def test_a_line_in_place_of_another_opens_the_same_mail_unless_it_says_whose(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, tables(nodes, "dc1") as users:
        table = users["dc1"]
        await table.add([b"ann:*::::::user=team nologin", b"bob:*::::::user=team", b"eve:*"])
        await table.add([b"Ann:{PLAIN}1", b"bob:{PLAIN}2::::::user=ben", b"eve:{PLAIN}3"], replace=True)
        assert shown(nodes["dc1"]) == ["Ann:{PLAIN}1::::::user=team", "bob:{PLAIN}2::::::user=ben", "eve:{PLAIN}3"]
        with pytest.raises(ValueError, match="at most 4096 bytes"):
            await table.add([b"ann:*::::::" + b"x" * 4080], replace=True)


async def test_who_else_opens_the_mail_is_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, tables(nodes, "dc1") as users:
        table = users["dc1"]
        await table.add([b"team:*", b"Ann:*::::::user=team", b"bob:*::::::user=TEAM", b"eve:*"])
        assert await table.set_disabled("ann", disabled=True) == MailNames("team", ("bob", "team"))
        assert await table.set_disabled("eve", disabled=True) == MailNames("eve")
        assert await table.delete("team") == MailNames("team", ("ann", "bob"))
        assert await table.delete("bob") == MailNames("team", ("ann",))
        assert await table.delete("ANN") == MailNames("team")


async def test_nobody_gets_a_name_while_it_is_not_known_whose_mail_another_opens(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, tables(nodes, "dc1") as users:
        table, name = users["dc1"], LINE + hashlib.sha256(b"zoe").hexdigest()
        await table.add([b"bob:*"])
        # Versions that did not know the word took any value.
        await nodes["dc1"].mail.annotate(USER_TABLE, None, {name: b"zoe:*::::::user=%n"})
        for change in (table.add([b"carol:*"]), table.rename("bob", "carol")):
            with pytest.raises(
                UserExistsError, match="not known whose mail 'zoe' opens, and it may be that of 'carol'"
            ):
                await change
        with pytest.raises(UsersUnavailableError, match="not known whose mail 'zoe' opens"):
            await table.names_of("carol")
        await table.add([b"zoe:*"], replace=True)
        assert await table.names_of("zoe") == ["zoe"]
        await table.add([b"carol:*"])
        assert shown(nodes["dc1"]) == ["bob:*", "carol:*", "zoe:*"]


async def test_lines_that_no_node_writes_are_not_in_the_file(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, tables(nodes, "dc1") as users:
        await users["dc1"].add([b"ann:{PLAIN}0"])
        strange = {LINE + "0" * 64: b"ann:{PLAIN}evil", "/shared/vendor/other/x": b"x", LINE + "1": b"\n"}
        await nodes["dc1"].mail.annotate(USER_TABLE, None, strange)
        await users["dc1"].add([b"bob:{PLAIN}0"])
        assert shown(nodes["dc1"]) == ["ann:{PLAIN}0", "bob:{PLAIN}0"]


async def test_all_nodes_have_one_secret_for_scram(tmp_path: Path, autojump_clock: MockClock) -> None:
    scram = b"{SCRAM-SHA-256}4096,c2FsdHNhbHRzYWx0c2E=," + b",".join([b"A" * 43 + b"="] * 2)
    async with cluster(tmp_path, autojump_clock, 2) as nodes, tables(nodes, "dc1", "dc2") as users:
        await users["dc1"].add([b"ann:{PLAIN}0"])
        assert SECRET not in file_of(nodes["dc1"]).read_bytes()
        await users["dc1"].set_password("ann", scram.decode())
        await users["dc2"].add([b"bob:" + scram])
        await until(lambda: len(shown(nodes["dc1"])) == 2)
        files = [file_of(node).read_bytes() for node in nodes.all()]
        assert files[0] == files[1]
        assert files[0].count(SECRET) == 1


async def test_more_users_than_a_client_may_have_annotations(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes, tables(nodes, "dc1", "dc2") as users:
        for first in range(0, 3000, 200):
            await users["dc1"].add([f"user{number:04}:{PLAIN}x".encode() for number in range(first, first + 200)])
        await until(lambda: len(shown(nodes["dc2"])) == 3000)


async def test_a_node_that_was_away_while_all_users_went_shows_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes:
        async with tables(nodes, "dc1", "dc2") as users:
            await users["dc1"].add([b"ann:{PLAIN}0"])
            await until(lambda: shown(nodes["dc2"]) == ["ann:{PLAIN}0"])
            await nodes.stop("dc2")
            await users["dc1"].delete("ann")
        await nodes.start("dc2")
        assert shown(nodes["dc2"]) == ["ann:{PLAIN}0"]
        async with tables(nodes, "dc2"):
            await until(lambda: shown(nodes["dc2"]) == [])


async def test_no_node_numbers_a_change_that_others_refuse(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An entry that no peer takes would end every link."""
    async with cluster(tmp_path, autojump_clock, 2) as nodes, tables(nodes, "dc1", "dc2") as users:
        lines = [f"user{number:04}:{{PLAIN}}x:".encode().ljust(4096, b"x") for number in range(500)]
        with pytest.raises(InvalidNameError, match="too much for one change"):
            await users["dc1"].add(lines)
        await users["dc1"].add(lines[:200])
        await until(lambda: len(shown(nodes["dc2"])) == 200)


async def test_a_file_that_could_not_be_written_has_everybody_in_the_end(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = False

    def write(path: Path, lines: Iterable[bytes]) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_lines(path, lines)

    monkeypatch.setattr(user_table, "write_lines", write)
    async with cluster(tmp_path, autojump_clock, 1) as nodes, tables(nodes, "dc1") as users:
        await users["dc1"].add([b"ann:{PLAIN}0"])
        is_full = True
        with pytest.raises(OSError, match="No space"):
            await users["dc1"].delete("ann")
        with pytest.raises(OSError, match="No space"):
            await users["dc1"].add([b"ann:{PLAIN}0"])
        is_full = False
        await users["dc1"].add([b"bob:{PLAIN}0"])
        assert shown(nodes["dc1"]) == ["ann:{PLAIN}0", "bob:{PLAIN}0"]


async def test_only_trouble_that_is_new_is_logged(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("x")
        await nodes.converged()
        await nodes.stop("dc2")
        nodes.erase("dc2")
        await nodes.stop("dc1")
        nodes.waits_when_new = True
        await nodes.start("dc2")
        async with tables(nodes, "dc2"):
            await trio.sleep(300)
        await nodes.start("dc1")
    assert caplog.text.count("the users of the cluster cannot be written yet") <= 1
