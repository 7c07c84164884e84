"""Debian's Dovecot as the master of syncs with a real node's mail."""

from __future__ import annotations

import imaplib
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import ANY

import pytest
import trio
import trustme

from replicator.config import Address, CertificateConfig, DoveadmConfig, ListenConfig, default_config
from replicator.dsync.node_mail.attribute_keys import CONFIGURED, OF_SERVER
from replicator.dsync.rules.mails.flags import FlagChanges
from replicator.errors import MailError, QuotaExceededError, UnavailableError
from replicator.mail.flags import MAX_KEYWORDS
from replicator.mail.mailstore import NewMessage
from replicator.users import add_user
from tests.dsync.dovecot import MAILDIR, MBOX, PASSWORD, REPLICATOR, SDBOX, Dovecot, dovecot, needs_dovecot
from tests.dsync.sides import USER, DovecotSide, History, Master, NodeSide, door, node_replicas
from tests.effort import examples, first
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.one_node import HookedMail, failing, nothing, one_node

pytestmark = needs_dovecot
ROUNDS = examples(8, 20)
FOLDERS = ("A", "B", "A/x", "A/y", "B/x", "C", "C/x/z")


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize("has_inbox", [False, True])
@pytest.mark.parametrize(("kind", "location"), [("c", SDBOX), ("f", MAILDIR), ("s", SDBOX), ("s", MAILDIR)])
@pytest.mark.parametrize("seed", first(1, range(3)))
async def test_both_sides_become_equal(tmp_path: Path, kind: str, location: str, seed: int, *, has_inbox: bool) -> None:
    random = Random(f"{kind} {location} {seed} {has_inbox}")
    with dovecot(location) as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            sides = DovecotSide(server), NodeSide(mail)
            histories = [History(side, random) for side in sides]
            master = Master(server, address)
            for number in range(ROUNDS):
                for history in histories:
                    if number or history.side is sides[0] or has_inbox:  # a user's first sync takes over all numbers
                        await history.go_on()
                done = await master.sync(kind)
                assert done.returncode == 0, (number, done)
                left, right = [await side.shown() for side in sides]
                assert left == right, (number, [history.deeds for history in histories])
            if not has_inbox:
                assert await uidvalidity(mail) == server.status("INBOX")["uidvalidity"]


@pytest.mark.parametrize("kind", ["c", "f", "s"])
async def test_the_last_change_of_a_flag_counts(tmp_path: Path, kind: str) -> None:
    """Dovecot tells all changes that its log still has, old ones included."""
    with dovecot() as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            master, sides = Master(server, address), (DovecotSide(server), NodeSide(mail))
            await sides[0].append(b"Subject: x\r\n\r\n")
            await sides[0].flag(1, "\\Seen", is_set=True)
            await sides[0].flag(1, "kw", is_set=True)
            await sides[0].flag(1, "kw", is_set=False)
            assert (await master.sync(kind)).returncode == 0
            await sides[1].flag(1, "\\Seen", is_set=False)
            await sides[1].flag(1, "kw", is_set=True)
            for _ in range(3):
                assert (await master.sync(kind)).returncode == 0
                assert [await side.shown() for side in sides] == [[(1, ANY, frozenset({"kw"}))]] * 2
            await sides[0].flag(1, "\\Seen", is_set=True)
            await sides[1].flag(1, "\\Flagged", is_set=True)
            assert (await master.sync(kind)).returncode == 0
            assert [await side.shown() for side in sides] == [[(1, ANY, frozenset({"kw", "\\Seen", "\\Flagged"}))]] * 2
            await sides[0].flag(1, "\\Seen", is_set=False)
            for _ in range(2):
                assert (await master.sync(kind)).returncode == 0
                assert [await side.shown() for side in sides] == [[(1, ANY, frozenset({"kw", "\\Flagged"}))]] * 2


@pytest.mark.parametrize("kind", ["c", "s"])
@pytest.mark.parametrize("seed", first(1, range(3)))
async def test_both_sides_become_equal_where_the_node_is_restarted(tmp_path: Path, kind: str, seed: int) -> None:
    random = Random(f"{kind} {seed}")
    with dovecot() as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms, forgets=True)) as address:
            sides = DovecotSide(server), NodeSide(mail)
            histories = [History(side, random) for side in sides]
            master = Master(server, address)
            for number in range(ROUNDS):
                for history in histories:
                    await history.go_on()
                done = await master.sync(kind)
                if kind == "s" and done.returncode == 2:  # the node does not know what Dovecot's state stands for
                    assert not master.state
                    done = await master.sync(kind)
                assert done.returncode == 0, (number, done)
                left, right = [await side.shown() for side in sides]
                assert left == right, (number, [history.deeds for history in histories])


async def uidvalidity(mail: HookedMail) -> str:
    return str((await mail.folder(USER, "INBOX")).uidvalidity)


@pytest.mark.parametrize("seed", first(1, range(4)))
async def test_folders_become_equal(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with dovecot() as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            master = Master(server, address)
            for number in range(ROUNDS // 2):
                for _ in range(2):
                    await change_at_dovecot(server, random)
                    await change_at_node(mail, random)
                await master.sync()  # a folder whose name is taken waits for the next sync, which Dovecot may ask for
                done = await master.sync()
                assert done.returncode == 0, (number, done)
                assert await folders(mail) == (server.folders(USER), server.subscriptions(USER)), number


async def change_at_dovecot(server: Dovecot, random: Random) -> None:
    kind, name, other = random.choice(KINDS), random.choice(FOLDERS), random.choice(FOLDERS)
    words = [kind, "-u", USER, name, *([other] if kind == "rename" else [])]
    await trio.to_thread.run_sync(lambda: server.run("mailbox", *words))


KINDS = ("create", "delete", "rename", "subscribe", "unsubscribe")


async def change_at_node(mail: HookedMail, random: Random) -> None:
    kind, name, other = random.choice(KINDS), random.choice(FOLDERS), random.choice(FOLDERS)
    try:
        match kind:
            case "create":
                folder = await mail.create_folder(USER, name)
                await mail.save(folder, NewMessage(b"Subject: in a folder\r\n\r\n"))
            case "delete":
                await mail.delete_folder(USER, name)
            case "rename":
                await mail.rename_folder(USER, name, other)
            case _:
                await mail.subscribe(USER, name, subscribed=kind == "subscribe")
    except MailError:
        pass  # there is no such folder, or there is already


async def folders(mail: HookedMail) -> tuple[dict[str, tuple[str, int]], set[str]]:
    """Return GUIDs and numbers of mails by folder, without INBOX, and the subscriptions."""
    found = {}
    guids = {one.mailbox_id: one.guid for one in (await mail.tree_changes(USER)).folders}
    for folder in await mail.folders(USER):
        if folder.name != "INBOX":
            found[folder.name] = guids[folder.mailbox_id].hex(), (await mail.status(folder)).messages
    return found, {*await mail.subscriptions(USER)}


@pytest.mark.parametrize("kind", ["c", "s"])
async def test_annotations_go_both_ways(tmp_path: Path, kind: str) -> None:
    with dovecot() as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            master = Master(server, address)

            async def sync() -> Mapping[str, bytes]:
                """Sync, and return what the node has then, once Dovecot has the same."""
                assert (await master.sync(kind)).returncode == 0
                found = await mail.annotations(USER, await mail.folder(USER, "INBOX"))
                for name in NAMES:
                    there = server.run("mailbox", "metadata", "get", "-u", USER, "INBOX", name).stdout
                    assert there.removesuffix(b"\n") == found.get(name, b""), name
                return found

            server.do("mailbox", "metadata", "set", "-u", USER, "INBOX", NAMES[0], "a tab\there")
            server.do("mailbox", "metadata", "set", "-u", USER, "INBOX", NAMES[1], "for all")
            assert await sync() == {NAMES[0]: b"a tab\there", NAMES[1]: b"for all"}
            await sync()
            folder = await mail.folder(USER, "INBOX")
            await mail.annotate(USER, folder, {NAMES[0]: b"of the node", NAMES[1]: None, NAMES[2]: b"\xc3\xbc\r\n."})
            assert await sync() == {NAMES[0]: b"of the node", NAMES[2]: b"\xc3\xbc\r\n."}
            server.do("mailbox", "metadata", "set", "-u", USER, "INBOX", NAMES[0], "again")
            server.do("mailbox", "metadata", "unset", "-u", USER, "INBOX", NAMES[2])
            assert await sync() == {NAMES[0]: b"again"}


NAMES = ("/private/comment", "/shared/comment", "/private/vendor/example/note")


@pytest.mark.parametrize("kind", ["c", "s"])
async def test_annotations_of_the_server_go_both_ways(tmp_path: Path, kind: str) -> None:
    """Dovecot shows them at the mailbox with an empty name, as RFC 5464 has it; here they are the account's."""
    with dovecot() as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            master = Master(server, address)

            async def sync() -> Mapping[str, bytes]:
                """Sync, and return what the node has then, once Dovecot has the same."""
                done = await master.sync(kind)
                assert (done.returncode, b"Error" in done.stderr) == (0, False), done
                found = await mail.annotations(USER, None)
                for name in (COMMENT, COLOUR, NOTE):
                    there = server.run("mailbox", "metadata", "get", "-u", USER, "-s", "", name).stdout
                    assert there.removesuffix(b"\n") == found.get(name, b""), name
                assert await mail.annotations(USER, await mail.folder(USER, "INBOX")) == {}
                return found

            for name in (COMMENT, COLOUR, SIEVE_SCRIPT):
                server.do("mailbox", "metadata", "set", "-u", USER, "-s", "", name, f"Dovecot's {name}")
            at_first = {name: f"Dovecot's {name}".encode() for name in (COMMENT, COLOUR)}
            assert await sync() == at_first
            assert await sync() == at_first
            server.do("mailbox", "metadata", "set", "-u", USER, "-s", "", NOTE, "b")
            assert await sync() == {**at_first, NOTE: b"b"}
            server.do("mailbox", "metadata", "set", "-u", USER, "-s", "", NOTE, "a")  # which counts, though it is less
            assert await sync() == {**at_first, NOTE: b"a"}
            await mail.annotate(USER, None, {COMMENT: b"of the node", COLOUR: None, NOTE: b"\xc3\xbc\r\n."})
            assert await sync() == {COMMENT: b"of the node", NOTE: b"\xc3\xbc\r\n."}
            server.do("mailbox", "metadata", "set", "-u", USER, "-s", "", COMMENT, "again")
            server.do("mailbox", "metadata", "unset", "-u", USER, "-s", "", NOTE)
            assert await sync() == {COMMENT: b"again"}
            stays = dict.fromkeys((SIEVE_SCRIPT, *CONFIGURED), b"of the node")
            await mail.annotate(USER, None, stays)
            assert await sync() == {COMMENT: b"again", **stays}
            there = server.do("mailbox", "metadata", "get", "-u", USER, "-s", "", SIEVE_SCRIPT)
            assert there == f"Dovecot's {SIEVE_SCRIPT}\n"


COMMENT, COLOUR, NOTE = "/private/comment", "/shared/vendor/example/colour", "/private/vendor/example/note"
SIEVE_SCRIPT = "/private/sieve/files/main"


async def test_annotations_of_inbox_are_not_taken_for_the_servers(tmp_path: Path) -> None:
    with dovecot() as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            await mail.annotate(
                USER, await mail.folder(USER, "INBOX"), {f"/private/{OF_SERVER}sieve/default": b"x", COMMENT: b"taken"}
            )
            assert (await Master(server, address).sync()).returncode == 0
            attributes = (server.directory / "mail" / USER / "attributes").read_text()
            assert "taken" in attributes
            assert "sieve" not in attributes


async def test_the_replicator_brings_each_change(tmp_path: Path) -> None:
    async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
        with dovecot(more=REPLICATOR.format(address=address)) as server:
            sides = DovecotSide(server), NodeSide(mail)
            for number in range(3):
                await sides[0].append(b"Subject: %d\r\n\r\n" % number)
                if number:
                    await sides[0].flag(number, "\\Seen", is_set=True)
                await become_equal(*sides)
            await sides[1].append(b"Subject: from the node\r\n\r\n")  # comes with Dovecot's next change
            await sides[0].append(b"Subject: from Dovecot\r\n\r\n")
            await become_equal(*sides)
            assert len(await sides[1].shown()) == 5


async def become_equal(one: DovecotSide, other: NodeSide) -> None:
    with trio.fail_after(30):
        while await one.shown() != await other.shown():  # noqa: ASYNC110 - Dovecot tells nobody that a sync is over
            await trio.sleep(0.05)


async def test_large_mails_pass_through(tmp_path: Path) -> None:
    large = b"Subject: large\r\n\r\n" + b"0123456789abcdef.\r\n.\r\n" * 20_000
    with dovecot() as server:
        server.save(USER, large.replace(b"large", b"Dovecot's"))
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            master = Master(server, address)
            assert (await master.sync()).returncode == 0
            assert await mail.bodies(USER) == [large.replace(b"large", b"Dovecot's")]
            await mail.save(await mail.folder(USER, "INBOX"), NewMessage(large))
            assert (await master.sync()).returncode == 0
            assert server.text(USER, 2) == large


async def test_a_folder_gets_no_more_keywords_than_it_may_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = [f"k{number:03}" for number in range(MAX_KEYWORDS + 20)]
    with dovecot() as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            master = Master(server, address)
            for uid in (1, 2):
                server.save(USER, b"Subject: %d\r\n\r\n" % uid)
                assert (await master.sync()).returncode == 0
                server.do("flags", "add", "-u", USER, " ".join(words), "mailbox", "INBOX", "uid", str(uid))
                assert (await master.sync()).returncode == 0
            server.save(USER, b"Subject: 3\r\n\r\n")
            server.do("flags", "add", "-u", USER, " ".join(reversed(words)), "mailbox", "INBOX", "uid", "3")
            for _ in range(2):
                assert (await master.sync()).returncode == 0
            shown = await NodeSide(mail).shown()
            assert [len(flags) for _, _, flags in shown] == [MAX_KEYWORDS] * 3
            assert len(frozenset[str]().union(*(flags for _, _, flags in shown))) == MAX_KEYWORDS
            lines = [one.message for one in caplog.records if "were left out" in one.message]
            assert len(lines) == 5, "one for each sync of the folder"
            assert "were left out 20 times: user=u1 folder=INBOX keywords=" in lines[0]
            assert [len(flags) for _, _, flags in server.mails(USER)] == [len(words)] * 3, "Dovecot keeps them"


async def test_dovecot_logs_why_a_sync_fails(tmp_path: Path) -> None:
    with dovecot() as server:
        for number in range(3):
            server.save(USER, b"Subject: %d\r\n\r\n" % number)
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:

            async def fails(words: str, *command: str) -> None:
                [kind, *options] = command
                done = await trio.to_thread.run_sync(lambda: server.run(kind, "-u", USER, *options, address))
                lines = done.stderr.decode().splitlines()
                assert done.returncode not in {0, 2}, done
                assert any("Error: Remote dsync failed: " in line and words in line for line in lines), lines

            await fails("syncs all mails of a folder: leave out the options -t", "sync", "-t", "2020-01-01")
            await fails("syncs all mails of a folder: leave out the options -t", "sync", "-1", "-R", "-t", "2020-01-01")
            await fails("-O and -a", "sync", "-a", "All")
            await fails("excludes folders by their names only", "backup", "-x", "\\Junk")
            mail.before_change = failing(QuotaExceededError("the user has no room left"))
            await fails("the user has no room left", "sync")
            mail.before_change = nothing
            assert (await Master(server, address).sync()).returncode == 0
            assert await DovecotSide(server).shown() == await NodeSide(mail).shown() != []


@pytest.mark.parametrize("command", [["sync", "-1", "-R"], ["backup", "-R"], ["backup"], ["sync"]])
async def test_a_refused_sync_changes_nothing(tmp_path: Path, command: list[str]) -> None:
    with dovecot() as server:
        server.save(USER, b"Subject: kept\r\n\r\n")
        server.do("mailbox", "create", "-u", USER, "Kept")
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            await mail.create_folder(USER, "Here")
            before = server.mails(USER), server.folders(USER)
            [kind, *options] = command
            words = [kind, "-u", USER, *options, "-x", "\\Junk", address]
            done = await trio.to_thread.run_sync(lambda: server.run(*words))
            assert done.returncode in {65, 75}
            assert (server.mails(USER), server.folders(USER)) == before
            assert {folder.name for folder in await mail.folders(USER)} == {"INBOX", "Here"}


@pytest.mark.parametrize("command", [["sync"], ["sync", "-f"], ["sync", "-s", ""], ["sync", "-1"], ["backup"]])
async def test_an_mbox_is_refused_in_words(tmp_path: Path, command: list[str]) -> None:
    with dovecot(MBOX) as server:
        server.do("mailbox", "create", "-u", USER, "A")
        for folder in ("INBOX", "A"):
            server.save(USER, b"Subject: kept\r\n\r\n", folder)
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            before = server.mails(USER), server.folders(USER)
            [kind, *options] = command
            done = await trio.to_thread.run_sync(lambda: server.run(kind, "-u", USER, *options, address))
            assert done.returncode == 65
            assert b"Remote dsync failed: the master's storage keeps no GUIDs" in done.stderr
            assert (server.mails(USER), server.folders(USER)) == before
            assert await NodeSide(mail).shown() == []


async def test_backups_of_a_node(tmp_path: Path) -> None:
    with dovecot() as server:
        server.save(USER, b"Subject: 1\r\n\r\n")
        server.do("mailbox", "create", "-u", USER, "Work/x")
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            sides = DovecotSide(server), NodeSide(mail)

            async def backup(*options: str) -> int:
                return (await trio.to_thread.run_sync(lambda: server.run("backup", *options, *target))).returncode

            target = ["-u", USER, address]
            assert await backup() == 0
            assert await sides[0].shown() == await sides[1].shown() != []
            await sides[0].append(b"Subject: 2\r\n\r\n")
            await sides[0].flag(1, "kw", is_set=True)
            await mail.create_folder(USER, "Extra")
            assert await backup() == 0
            assert await sides[0].shown() == await sides[1].shown()
            assert {folder.name for folder in await mail.folders(USER)} == {"INBOX", "Work/x"}
            await sides[1].append(b"Subject: not at Dovecot\r\n\r\n")
            await sides[0].append(b"Subject: under the same UID\r\n\r\n")
            for _ in range(2):
                assert await backup() == 0
                theirs, ours = [await side.shown() for side in sides]
                assert {(guid, flags) for _, guid, flags in theirs} == {(guid, flags) for _, guid, flags in ours}
            await sides[1].append(b"Subject: 3\r\n\r\n")
            await sides[1].expunge(1)
            await mail.create_folder(USER, "New")
            assert [await backup("-R") for _ in range(2)][-1] == 0  # the first one may delete INBOX there
            assert await sides[0].shown() == await sides[1].shown()
            assert "New" in server.folders(USER)


async def test_a_node_opens_the_door(tmp_path: Path) -> None:
    """A whole node, with a passwd-file, and a client that reads what Dovecot has brought."""
    imap, doveadm = (Address("127.0.0.1", port) for port in free_ports(2))
    config = default_config("dc1", tmp_path, listen=ListenConfig(imap=imap, doveadm=doveadm))
    config = replace(config, doveadm=DoveadmConfig(tmp_path / "secret"))
    (tmp_path / "secret").write_text(f"{PASSWORD}\nmore\n", "utf-8")
    add_user(config.users.passwd_file, USER, "secret")
    with dovecot() as server:
        server.save(USER, b"Subject: from Dovecot\r\n\r\n")
        async with running([config]):
            master = Master(server, f"tcp:{doveadm}")
            assert (await master.sync()).returncode == 0
            assert await trio.to_thread.run_sync(subjects, imap) == [b"Subject: from Dovecot\r\n\r\n"]
            (tmp_path / "secret").write_text("another one\n", "utf-8")
            assert (await master.sync()).returncode == 75
            (tmp_path / "secret").unlink()
            assert (await master.sync()).returncode == 75


async def test_tls_begins_at_once_off_loopback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    port, authority = free_ports(1)[0], trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "mail.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "mail.key")
    config = default_config("dc1", tmp_path, listen=ListenConfig(doveadm=Address("0.0.0.0", port)))
    config = replace(
        config,
        doveadm=DoveadmConfig(tmp_path / "secret"),
        certificates=(CertificateConfig(tmp_path / "mail.pem", tmp_path / "mail.key"),),
    )
    (tmp_path / "secret").write_text(f"{PASSWORD}\n", "utf-8")
    add_user(config.users.passwd_file, USER, "secret")
    with dovecot(more="ssl_client_ca_file = {directory}/ca.pem") as server:
        authority.cert_pem.write_to_path(server.directory / "ca.pem")
        server.save(USER, b"Subject: from Dovecot\r\n\r\n")
        async with running([config]):
            assert (await Master(server, f"tcps:127.0.0.1:{port}").sync()).returncode == 0
            assert (await Master(server, f"tcp:127.0.0.1:{port}").sync()).returncode == 75
    assert 'reason="the client begins without TLS: write tcps: there, in place of tcp:"' in caplog.text


def subjects(address: Address) -> list[bytes]:
    with imaplib.IMAP4(*address, timeout=60) as client:
        client.login(USER, "secret")
        client.select()
        return [part[1] for part in client.fetch("1:*", "BODY.PEEK[]")[1] if isinstance(part, tuple)]


async def test_a_uid_that_names_another_mail_by_then_is_left_alone(tmp_path: Path) -> None:
    """Branches that join give UIDs to other mails: here a mail gets another UID, and its own is asked for."""
    async with one_node(tmp_path) as mail, node_replicas(mail, now_ms)(USER) as replica:
        side = NodeSide(mail)
        for number in range(2):
            await side.append(b"Subject: %d\r\n\r\n" % number)
        folder = await mail.folder(USER, "INBOX")
        async with replica.mailbox(folder.mailbox_id, "peer") as box:
            assert box is not None
            await box.mails()
            view = await mail.open_mailbox(folder)
            await mail.renumber(view, {1: 3})
            await mail.renumber(view, {2: 4})
            await box.expunge([1, 2, 3, 4])
            await box.change_flags({FlagChanges(added=frozenset({"\\Seen"})): [3]})
            await box.move({4: 9})
        assert [(uid, flags) for uid, _, flags in await side.shown()] == [(3, frozenset()), (4, frozenset())]


async def test_a_state_says_nothing_once_a_mail_has_got_another_uid(tmp_path: Path) -> None:
    """Branches may join after the states were told, and before the mailbox is read."""
    async with one_node(tmp_path) as mail, node_replicas(mail, now_ms)(USER) as replica:
        side = NodeSide(mail)
        for number in range(2):
            await side.append(b"Subject: %d\r\n\r\n" % number)
        folder = await mail.folder(USER, "INBOX")
        common = 2, (await mail.open_mailbox(folder)).highestmodseq
        async with replica.mailbox(folder.mailbox_id, "peer") as box:
            assert box is not None
            await box.mails()
            await box.synced(*common)
        assert [(one.last_common_uid, one.last_common_modseq) for one in await replica.states("peer")] == [common]
        async with replica.mailbox(folder.mailbox_id, "peer") as box:
            assert box is not None
            assert await box.can_tell_since(*common)
            await mail.renumber(await mail.open_mailbox(folder), {1: 5})
            with pytest.raises(UnavailableError, match="other UIDs"):
                await box.changed(*common)
        assert await replica.states("peer") == []
