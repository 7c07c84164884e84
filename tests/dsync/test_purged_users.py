"""A user who is deleted at the cluster, purged and added again: syncs with Dovecot bring the mail that it still has."""

from __future__ import annotations

import imaplib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from protocol.values import UidSet
from replicator.cli.command_list import cli
from replicator.config import (
    Address,
    Config,
    DoveadmConfig,
    DovecotConfig,
    UsersConfig,
    UserSource,
    config_text,
)
from replicator.dsync.node_mail.last_syncs import LastSync, LastSyncs
from replicator.dsync.rules.tree import Tree
from replicator.mail.last_changes import Purge
from replicator.mail.mailstore import INBOX, NewMessage
from replicator.runtime.environment import wall_clock_ms
from tests.dsync.dovecot import MAILDIR, PASSWORD, SDBOX, Dovecot, dovecot, needs_dovecot
from tests.dsync.pushed import listening_dovecot
from tests.dsync.sides import USER as OF_NODE
from tests.dsync.sides import DovecotSide, Master, NodeSide, Shown, Side, door, node_replicas
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.two_nodes import configs
from tests.one_node import HookedMail, one_node

USER = "alice"
WITHIN_S = 60.0


def nodes_in(directory: Path) -> list[Config]:
    """Return two nodes with users of their own, and a door for doveadm at the first one."""
    (directory / "secret").write_text(f"{PASSWORD}\n", "utf-8")
    one, other = (
        replace(config, users=UsersConfig(config.node.cluster_users, UserSource.CLUSTER))
        for config in configs(directory)
    )
    door = Address("127.0.0.1", free_ports(1)[0])
    one = replace(one, listen=replace(one.listen, doveadm=door), doveadm=DoveadmConfig(directory / "secret"))
    return [one, other]


def written(config: Config, directory: Path) -> Config:
    """Write a configuration where `run` looks for it."""
    (directory / f"{config.node.id}.toml").write_text(config_text(config, directory), "utf-8")
    return config


def run(directory: Path, *words: str, at: str = "dc1") -> Result:
    arguments = [*words, "--config", str(directory / f"{at}.toml")]
    return CliRunner().invoke(cli, arguments, input="secret\n", prog_name="replicator")


def until(is_true: Callable[[], object]) -> None:
    """Wait until this is true, which takes a while to look at."""
    deadline = trio.from_thread.run_sync(trio.current_time) + WITHIN_S
    while not is_true():
        assert trio.from_thread.run_sync(trio.current_time) < deadline


def purge(directory: Path) -> None:
    """Delete the user, purge the mail, and add the user again."""
    assert run(directory, "user", "delete", USER).exit_code == 0
    until(lambda: run(directory, "user", "purge", USER, "--yes", at="dc2").exit_code == 0)
    assert run(directory, "user", "add", USER).exit_code == 0


@contextmanager
def logged_in(config: Config) -> Iterator[imaplib.IMAP4]:
    """Yield a client, as soon as the node knows the user."""
    found = list[imaplib.IMAP4]()

    def can_log_in() -> bool:
        assert config.listen.imap is not None
        client = imaplib.IMAP4(*config.listen.imap)
        try:
            client.login(USER, "secret")
        except imaplib.IMAP4.error:
            client.shutdown()
            return False
        found.append(client)
        return True

    until(can_log_in)
    try:
        yield found[0]
    finally:
        found[0].shutdown()


def folders_of(config: Config) -> dict[str, list[bytes]]:
    """Return the first lines of all mails that clients see, by folder, in the order of their UIDs."""
    found = dict[str, list[bytes]]()
    with logged_in(config) as client:
        for line in client.list()[1]:
            assert isinstance(line, bytes)
            name = line.decode().rpartition('"/" ')[2].strip('"')
            assert client.select(name, readonly=True)[0] == "OK"
            answer = client.uid("fetch", "1:*", "(BODY.PEEK[HEADER.FIELDS (SUBJECT)])")[1]
            found[name] = [part[1].strip() for part in answer if isinstance(part, tuple)]
    return found


def folders_at(server: Dovecot) -> dict[str, list[bytes]]:
    """Return what `folders_of` does, at Dovecot."""
    found = dict[str, list[bytes]]()
    for name in ["INBOX", *server.folders(USER)]:
        output = server.do("-f", "tab", "fetch", "-u", USER, "uid hdr.subject", "mailbox", name, "all")
        rows = [line.split("\t") for line in output.splitlines()[1:]]
        found[name] = [b"Subject: " + subject.encode() for _, subject in sorted(rows, key=lambda row: int(row[0]))]
    return found


ALL = {
    "INBOX": [b"Subject: 1", b"Subject: 2", b"Subject: 3"],
    "Work": [b"Subject: w"],
    "Work/Old": [b"Subject: o"],
}


def use(config: Config) -> None:
    """Let a client make all this, and expunge a mail of INBOX."""
    with logged_in(config) as client:
        client.create("Work/Old")
        client.append("INBOX", "", "", b"Subject: gone\r\n\r\n")
        for folder, subjects in ALL.items():
            for subject in subjects:
                client.append(folder, "", "", subject + b"\r\n\r\n")
        client.subscribe("Work")
        for folder in ("INBOX", "Work"):
            client.xatom("SETMETADATA", folder, '(/private/comment "kept")')
        expunge(client, "1")


def expunge(client: imaplib.IMAP4, uids: str) -> None:
    """Expunge mails of INBOX."""
    client.select()
    client.uid("store", uids, "+FLAGS", "(\\Deleted)")
    client.expunge()


def syncer(config: Config, server: Dovecot, kind: str) -> Callable[[], None]:
    """Return what lets Dovecot sync until nothing is left to do."""
    state = ""

    def sync() -> None:
        nonlocal state
        for _ in range(3):
            words = {"f": ["-f"], "s": ["-s", state], "c": []}[kind]
            done = server.run("sync", "-u", USER, *words, f"tcp:{config.listen.doveadm}")
            assert done.returncode in {0, 2}, done
            state = done.stdout.decode().strip()

    return sync


@needs_dovecot
@pytest.mark.parametrize(("kind", "location"), [("c", SDBOX), ("f", MAILDIR), ("s", SDBOX), ("s", MAILDIR)])
async def test_mail_that_was_purged_comes_back_from_a_dovecot_that_syncs(
    tmp_path: Path, kind: str, location: str
) -> None:
    one, other = (written(config, tmp_path) for config in nodes_in(tmp_path))

    def play(server: Dovecot) -> None:
        sync = syncer(one, server, kind)
        until(lambda: run(tmp_path, "user", "add", USER).exit_code == 0)
        use(one)
        sync()
        assert folders_at(server) == folders_of(one) == ALL
        purge(tmp_path)
        assert folders_of(one) == {"INBOX": []}
        sync()
        assert folders_at(server) == folders_of(one) == ALL
        assert server.subscriptions(USER) >= {"Work"}
        with logged_in(one) as client:
            client.select()  # imaplib takes such a command only in the state in which it was first given in the process
            for folder in ("INBOX", "Work"):
                client.xatom("GETMETADATA", folder, "/private/comment")
                assert client.response("METADATA")[1] == [f'"{folder}" (/private/comment "kept")'.encode()]
            expunge(client, "1:*")
            client.delete("Work/Old")
        sync()
        assert folders_at(server) == folders_of(one) == {"INBOX": [], "Work": ALL["Work"]}

    with listening_dovecot(location) as (server, _):
        async with running([one, other]):
            await trio.to_thread.run_sync(play, server)


@needs_dovecot
async def test_mail_that_was_purged_comes_back_from_a_dovecot_that_the_node_calls(tmp_path: Path) -> None:
    with listening_dovecot() as (server, address):
        one, other = nodes_in(tmp_path)
        one = written(replace(one, dovecots=(DovecotConfig(address, tmp_path / "secret"),)), tmp_path)
        written(other, tmp_path)

        def play() -> None:
            until(lambda: run(tmp_path, "user", "add", USER).exit_code == 0)
            use(one)
            until(lambda: folders_at(server) == ALL)
            purge(tmp_path)
            with logged_in(one) as client:
                client.append("INBOX", "", "", b"Subject: new\r\n\r\n")
            both = ALL | {"INBOX": sorted([*ALL["INBOX"], b"Subject: new"])}
            until(lambda: {name: sorted(mails) for name, mails in folders_of(one).items()} == both)
            until(lambda: folders_at(server) == folders_of(one))

        async with running([one, other]):
            await trio.to_thread.run_sync(play)


async def test_a_purge_that_broke_off_ends_with_the_next_sync(tmp_path: Path) -> None:
    """A folder that its user deletes then is told as deleted, and one that went before is not."""
    async with one_node(tmp_path) as mail:
        replicas = node_replicas(mail, wall_clock_ms)

        async def tree() -> Tree:
            async with replicas(OF_NODE) as replica:
                return await replica.tree()

        for name in ("Before", "Later"):
            await mail.create_folder(OF_NODE, name)
        await NodeSide(mail).append(b"Subject: 1\r\n\r\n")
        inbox = await mail.folder(OF_NODE, INBOX)
        await mail.note_purge(OF_NODE, None)
        await NodeSide(mail).expunge(1)
        await mail.delete_folder(OF_NODE, "Before")
        told = await tree()
        assert {*told.nodes} == {("INBOX",), ("Later",)}
        assert not told.deletions.mailboxes
        assert not await mail.expunged(inbox)
        await mail.delete_folder(OF_NODE, "Later")
        await mail.save(inbox, NewMessage(b"Subject: 2\r\n\r\n"))
        await NodeSide(mail).expunge(2)
        assert len((await tree()).deletions.mailboxes) == 1
        assert [uid for uid, _ in (await mail.expunged(inbox)).items()] == [2]


@needs_dovecot
@pytest.mark.parametrize("name", [INBOX, "Work"])
@pytest.mark.parametrize(("kind", "location"), [("c", SDBOX), ("f", MAILDIR), ("s", SDBOX), ("s", MAILDIR)])
async def test_a_purge_that_broke_off_in_a_folder_removes_nothing_at_dovecot(
    tmp_path: Path, kind: str, location: str, name: str
) -> None:
    """What the user expunges afterwards goes there, too, of the mail that was left and of the mail that came back."""
    subjects = [b"Subject: %d" % number for number in range(1, 7)]

    async def here(mail: HookedMail) -> list[bytes]:
        return sorted([body.strip() for body in await mail.bodies(OF_NODE, name)])

    async def expunge(mail: HookedMail, uids: list[int]) -> None:
        await mail.expunge(await mail.open_mailbox(await mail.folder(OF_NODE, name)), UidSet.of(uids))

    def there(server: Dovecot) -> list[bytes]:
        output = server.do("-f", "tab", "fetch", "-u", OF_NODE, "hdr.subject", "mailbox", name, "all")
        return sorted(b"Subject: " + line.encode() for line in output.splitlines()[1:])

    with dovecot(location) as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, wall_clock_ms)) as address:
            master = Master(server, address)

            async def sync() -> list[bytes]:
                for _ in range(3):
                    assert (await master.sync(kind)).returncode in {0, 2}
                found = await here(mail)
                assert await trio.to_thread.run_sync(there, server) == found
                return found

            if name != INBOX:
                await mail.create_folder(OF_NODE, name)
            for subject in subjects:
                await mail.save(await mail.folder(OF_NODE, name), NewMessage(subject + b"\r\n\r\n"))
            assert await sync() == subjects
            await mail.note_purge(OF_NODE, None)
            await expunge(mail, [5, 6])
            assert await sync() == subjects
            await expunge(mail, [3, 7])
            assert len(await sync()) == 4


@needs_dovecot
@pytest.mark.parametrize(("kind", "location"), [("c", SDBOX), ("f", MAILDIR)])
async def test_mail_that_two_dovecots_had_comes_back_once(tmp_path: Path, kind: str, location: str) -> None:
    with dovecot(location) as one, dovecot(location) as other:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, wall_clock_ms)) as address:
            masters = [Master(server, address) for server in (one, other)]
            sides: list[Side] = [NodeSide(mail), DovecotSide(one), DovecotSide(other)]

            async def synced() -> Shown:
                for _ in range(3):
                    for master in masters:
                        assert (await master.sync(kind)).returncode == 0
                first, *others = [await side.shown() for side in sides]
                assert others == [first, first]
                return first

            for number in range(6):
                await sides[0].append(b"Subject: %d\r\n\r\n" % number)
            before = await synced()
            await mail.note_purge(OF_NODE, None)
            view = await mail.open_mailbox(await mail.folder(OF_NODE, INBOX))
            await mail.expunge(view, UidSet.of(view.messages))
            await mail.note_purge(OF_NODE, 7)
            after = await synced()
            assert [guid for _, guid, _ in after] == [guid for _, guid, _ in before]
            await sides[0].expunge(after[2][0])
            await sides[1].expunge(after[3][0])
            assert len(await synced()) == 4


def test_syncs_before_a_purge_are_forgotten() -> None:
    inbox, work = bytes(16), bytes([1] * 16)
    known = [("a", inbox, 4, 3), ("b", inbox, 5, 3), ("a", work, 4, 3), ("b", work, 4, 2)]

    def left(purge: Purge) -> set[tuple[str, bytes]]:
        syncs = LastSyncs((peer, box, LastSync(box, 1, 1, at, common_uid=uid)) for peer, box, uid, at in known)
        syncs.forget_former(purge, inbox)
        assert syncs.is_changed
        return {(peer, box) for peer, box, _ in syncs.all()}

    assert left(Purge(5, 2 << 16, 2)) == {("b", inbox), ("a", work)}
    assert not left(Purge(None, 2 << 16, 2))
