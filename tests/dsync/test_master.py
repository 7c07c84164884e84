"""Syncs that this side begins with Debian's Dovecot: random histories of both sides become equal, states save work."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from protocol.values import UidSet
from replicator.config import Address
from replicator.dsync.conversation.master_session import MasterSession
from replicator.dsync.errors import PeerGoneError
from replicator.dsync.pushes.dovecot import DovecotRefusalError, DovecotUnreachableError
from replicator.dsync.replica import OpenReplica
from replicator.dsync.rules.tree import INBOX
from replicator.dsync.wire.items import FULL
from replicator.mail.listing import Listing
from replicator.mail.mailstore import Folder, NewMessage
from replicator.mail.scratch import Scratch
from replicator.mail.view import MailboxView
from replicator.runtime.environment import wall_clock_ms
from tests.dsync.dovecot import MAILDIR, SDBOX, needs_dovecot
from tests.dsync.memory_replica import MemoryReplica
from tests.dsync.pushed import listening_dovecot, remote
from tests.dsync.sides import USER, DovecotSide, History, Master, MemorySide, NodeSide, door, node_replicas
from tests.effort import examples, first
from tests.one_node import one_node

pytestmark = needs_dovecot
ROUNDS = examples(8, 20)
TRIES = 3
AGAIN = 2
"""Dovecot's exit code if a state is of no use, or somebody has changed the mailbox meanwhile."""


async def begin(
    address: Address, replica_of: OpenReplica, *, user: str = USER, everywhere: bool = True, full: bool = False
) -> bool:
    """Sync; return True if that is to be done again."""
    async with remote(address).begin_sync(user) as (peer, host), replica_of(user) as replica:
        session = MasterSession(peer, replica, "zz-test", host)
        await session.run(everywhere=everywhere, full=full)
        assert session.different == 0
    return session.again


async def sync(address: Address, replica_of: OpenReplica, *, full: bool = False) -> None:
    """Sync until nothing is left to do."""
    for _ in range(TRIES):
        if not await begin(address, replica_of, full=full):
            return
    raise AssertionError("the sync is never done")


@pytest.mark.parametrize("location", [SDBOX, MAILDIR])
@pytest.mark.parametrize("kind", ["s", "f"])
@pytest.mark.parametrize("seed", first(1, range(4)))
async def test_both_sides_become_equal(location: str, kind: str, seed: int) -> None:
    random = Random(f"{location} {kind} {seed}")
    replica = MemoryReplica()
    replica.create(INBOX, random.randbytes(16))
    with listening_dovecot(location) as (server, address):
        sides = DovecotSide(server), MemorySide(replica, random)
        histories = [History(side, random) for side in sides]
        for number in range(ROUNDS):
            for history in histories:
                await history.go_on()
            await sync(address, lambda _: replica, full=kind == FULL)
            left, right = [await side.shown() for side in sides]
            assert left == right, (number, [history.deeds for history in histories])


@pytest.mark.parametrize("location", [SDBOX, MAILDIR])
@pytest.mark.parametrize("kind", ["s", "f"])
@pytest.mark.parametrize("seed", first(1, range(4)))
async def test_a_node_and_a_dovecot_become_equal(tmp_path: Path, location: str, kind: str, seed: int) -> None:
    random = Random(f"{location} {kind} {seed}")
    with listening_dovecot(location) as (server, address):
        async with one_node(tmp_path) as mail:
            replica_of = node_replicas(mail, wall_clock_ms)
            sides = DovecotSide(server), NodeSide(mail)
            histories = [History(side, random) for side in sides]
            for number in range(ROUNDS):
                for history in histories:
                    await history.go_on()
                await sync(address, replica_of, full=kind == FULL)
                left, right = [await side.shown() for side in sides]
                assert left == right, (number, [history.deeds for history in histories])


@pytest.mark.parametrize("location", [SDBOX, MAILDIR])
@pytest.mark.parametrize("seed", first(1, range(4)))
async def test_both_begin_syncs_by_turns(tmp_path: Path, location: str, seed: int) -> None:
    """As where somebody runs `doveadm sync -s` beside a node that calls that Dovecot.

    Dovecot itself does not remember those. It leaves flags of mail alone that it takes for new on both sides.
    """
    random = Random(f"{location} {seed}")
    with listening_dovecot(location) as (server, address):
        async with one_node(tmp_path) as mail:
            replica_of = node_replicas(mail, wall_clock_ms)
            sides = DovecotSide(server), NodeSide(mail)
            histories = [History(side, random) for side in sides]
            async with door(replica_of) as here:
                master = Master(server, here)
                for number in range(2 * ROUNDS):
                    for history in histories:
                        await history.go_on()
                    kind = random.choice("sscp")
                    for _ in range(TRIES if kind != "p" else 0):
                        done = await master.sync(kind)
                        if done.returncode == 0:
                            break
                        assert done.returncode == AGAIN, (number, done)
                    await sync(address, replica_of)  # which always follows, as the node has seen changes
                    left, right = [await side.shown() for side in sides]
                    assert left == right, (number, kind, [history.deeds for history in histories])


async def test_folders_go_both_ways(tmp_path: Path) -> None:
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail:
            replica_of = node_replicas(mail, wall_clock_ms)
            server.do("mailbox", "create", "-u", USER, "-s", "There")
            await mail.create_folder(USER, "Here/below")
            await mail.subscribe(USER, "Here/below", subscribed=True)
            await sync(address, replica_of)
            assert {*server.folders(USER)} == {"There", "Here", "Here/below"}
            assert {one.name for one in await mail.folders(USER)} == {"INBOX", "There", "Here", "Here/below"}
            assert server.subscriptions(USER) == {*await mail.subscriptions(USER)} == {"There", "Here/below"}
            await trio.sleep(1.1)  # Dovecot counts in seconds
            server.do("mailbox", "rename", "-u", USER, "Here", "Moved")
            await mail.delete_folder(USER, "There")
            await sync(address, replica_of)
            assert {*server.folders(USER)} == {"Moved", "Moved/below"}
            assert {one.name for one in await mail.folders(USER)} == {"INBOX", "Moved", "Moved/below"}


@pytest.mark.parametrize("guid", [bytes(15) + b"\1", b"\xff" * 16], ids=["lower", "higher"])
@pytest.mark.parametrize("author", ["here", "there"])
async def test_a_mail_that_is_expunged_before_it_gets_another_uid_goes_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, author: str, guid: bytes
) -> None:
    """Both sides have given UID 1 to another mail, and one of the two goes meanwhile.

    The node's is known to Dovecot by a UID that it never had here. Dovecot's is not counted there any more, so the
    node's gets another UID there than here.
    """
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail:
            here, there, left = NodeSide(mail), DovecotSide(server), [1]
            await there.append(b"Subject: there\r\n\r\n")
            await mail.save(await mail.folder(USER, "INBOX"), NewMessage(b"Subject: here\r\n\r\n", guid=guid))
            renumber, list_messages = mail.renumber, mail.list_messages

            async def renumber_late(view: MailboxView, wanted: Mapping[int, int]) -> None:
                while left:
                    await here.expunge(left.pop())
                await renumber(view, wanted)

            async def list_late(folder: Folder, uids: UidSet | None = None, scratch: Scratch | None = None) -> Listing:
                while left:
                    await there.expunge(left.pop())
                return await list_messages(folder, uids, scratch)

            if author == "here":
                monkeypatch.setattr(mail, "renumber", renumber_late)
            else:
                monkeypatch.setattr(mail, "list_messages", list_late)
            replica_of = node_replicas(mail, wall_clock_ms)
            for _ in range(3):
                await begin(address, replica_of)
            assert not left
            shown = await here.shown()
            assert shown == await there.shown()
            assert len(shown) == 1


async def test_a_folder_that_is_deleted_at_the_node_stays_with_mail_that_no_node_saw(tmp_path: Path) -> None:
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail:
            replica_of = node_replicas(mail, wall_clock_ms)
            for name in ("Seen", "Unseen"):
                server.do("mailbox", "create", "-u", USER, name)
                server.save(USER, b"Subject: 1\r\n\r\n", name)
            await sync(address, replica_of)
            for name in ("Seen", "Unseen"):
                await mail.delete_folder(USER, name)
            server.save(USER, b"Subject: 2\r\n\r\n", "Unseen")
            await sync(address, replica_of)
            assert {name: mails for name, (_, mails) in server.folders(USER).items()} == {"Unseen": 2}
            assert len(await mail.bodies(USER, "Unseen")) == 2
            await mail.delete_folder(USER, "Unseen")
            await sync(address, replica_of)
            assert server.folders(USER) == {}, "it is deleted for good, as all its mail was seen"


@pytest.mark.parametrize("is_new", [False, True])
async def test_a_folder_below_one_that_is_deleted_and_has_got_mail(tmp_path: Path, *, is_new: bool) -> None:
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail:
            replica_of = node_replicas(mail, wall_clock_ms)
            for name in ("A/x", "B"):
                server.do("mailbox", "create", "-u", USER, name)
                server.save(USER, b"Subject: %s\r\n\r\n" % name.encode(), name)
            await sync(address, replica_of)
            deleted = await mail.folder(USER, "A/x")
            await mail.delete_folder(USER, "A/x")
            await mail.save(deleted, NewMessage(b"Subject: late\r\n\r\n"))  # by a client that has it open
            server.do("mailbox", *(("create",) if is_new else ("rename", "B")), "-u", USER, "A/x/y")
            for _ in range(2):
                await sync(address, replica_of)
            names = {"A", "A/x", "A/x/y", *({"B"} if is_new else ())}
            assert {one.name for one in await mail.folders(USER)} == {"INBOX", *names}
            assert server.folders(USER).keys() == names


async def test_a_folder_is_renamed_that_is_deleted_and_has_got_mail(tmp_path: Path) -> None:
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail:
            replica_of = node_replicas(mail, wall_clock_ms)
            server.do("mailbox", "create", "-u", USER, "-s", "Work")
            await sync(address, replica_of)
            deleted = await mail.folder(USER, "Work")
            await mail.delete_folder(USER, "Work")
            await mail.save(deleted, NewMessage(b"Subject: late\r\n\r\n"))  # by a client that has it open
            await sync(address, replica_of)
            server.do("mailbox", "rename", "-u", USER, "Work", "Kept")
            server.do("mailbox", "subscribe", "-u", USER, "Kept")
            for _ in range(2):
                await sync(address, replica_of)
            assert {one.name for one in await mail.folders(USER)} == {"INBOX", "Kept"}
            assert {name: mails for name, (_, mails) in server.folders(USER).items()} == {"Kept": 1}
            assert server.subscriptions(USER) == {*await mail.subscriptions(USER)}
            assert len(await mail.bodies(USER, "Kept")) == 1


async def test_a_mailbox_without_changes_is_left_alone_unless_all_are_looked_at(tmp_path: Path) -> None:
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail:
            replica_of = node_replicas(mail, wall_clock_ms)
            server.do("mailbox", "create", "-u", USER, "Quiet")
            server.save(USER, b"Subject: 1\r\n\r\n", "Quiet")
            await sync(address, replica_of)
            await sync(address, replica_of)
            server.do("flags", "add", "-u", USER, "\\Seen", "mailbox", "Quiet", "all")
            assert not await begin(address, replica_of, everywhere=False)
            quiet = await mail.open_mailbox(await mail.folder(USER, "Quiet"))
            assert quiet.messages[1].flags == frozenset()
            assert not await begin(address, replica_of)
            assert quiet.messages[1].flags == {"\\Seen"}
            await mail.annotate(USER, await mail.folder(USER, "Quiet"), {"/private/comment": b"noted"})
            assert not await begin(address, replica_of, everywhere=False)
            assert "noted" in server.do("mailbox", "metadata", "get", "-u", USER, "Quiet", "/private/comment")
            server.save(USER, b"Subject: 2\r\n\r\n", "Quiet")  # whose UIDNEXT Dovecot tells with its folders
            assert not await begin(address, replica_of, everywhere=False)
            assert len(quiet.messages) == 2


async def test_a_dovecot_with_an_older_state_is_filled_again(tmp_path: Path) -> None:
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail:
            replica_of = node_replicas(mail, wall_clock_ms)
            side = NodeSide(mail)
            for number in range(3):
                await side.append(b"Subject: %d\r\n\r\n" % number)
            await sync(address, replica_of)
            before = await side.shown()
            server.lose(USER)
            for _ in range(TRIES):
                try:
                    await sync(address, replica_of)
                except PeerGoneError:  # a Dovecot that finds its state older gives up, and says no more
                    await sync(address, replica_of, full=True)
                else:
                    break
            assert await side.shown() == before
            assert await DovecotSide(server).shown() == before


async def test_mail_that_comes_meanwhile_is_found_by_the_next() -> None:
    random = Random(1)
    replica = MemoryReplica()
    inbox = replica.create(INBOX, b"\xff" * 16)
    with listening_dovecot() as (server, address):
        for number in range(3):
            server.save(USER, b"Subject: %d\r\n\r\n" % number)
            inbox.meanwhile = partial(inbox.append, random.randbytes(16), b"Subject: meanwhile\r\n\r\n")
            assert await begin(address, lambda _: replica), "it is to be done again"
            assert not await begin(address, lambda _: replica)
            assert len(inbox.stored) == 2 * number + 2
            assert await MemorySide(replica, random).shown() == await DovecotSide(server).shown()


async def test_refusals_change_nothing() -> None:
    replica = MemoryReplica()
    replica.create(INBOX, b"1" * 16).append(b"r" * 16, b"Subject: r\r\n\r\n")
    before = deepcopy(replica)
    refused = pytest.raises(DovecotRefusalError, match="does not know the user")
    with listening_dovecot(more="auth_username_chars = u1\n") as (_, address), refused:
        await begin(address, lambda _: replica, user="nobody")
    with pytest.raises(DovecotUnreachableError, match="cannot be reached"):
        await begin(address, lambda _: replica)
    assert replica == before


@pytest.mark.parametrize("begins", ["here", "there"])
async def test_percent_signs_in_names_stay(tmp_path: Path, begins: str) -> None:
    """Dovecot takes them for the beginnings of codes of characters in names that it is told."""
    with listening_dovecot() as (server, node_calls):
        server.do("mailbox", "create", "-u", USER, "-s", "%there/50%off")
        async with one_node(tmp_path) as mail, door(node_replicas(mail, wall_clock_ms)) as dovecot_calls:
            for name in ("%41b", "here%"):
                await mail.create_folder(USER, name)
                await mail.subscribe(USER, name, subscribed=True)
            for _ in range(2):
                if begins == "here":
                    await sync(node_calls, node_replicas(mail, wall_clock_ms))
                else:
                    done = await Master(server, dovecot_calls).sync()
                    assert (done.returncode, done.stderr) == (0, b"")
                names = {"%there", "%there/50%off", "%41b", "here%"}
                assert {*server.folders(USER)} | {"%there"} == names
                assert {one.name for one in await mail.folders(USER)} == {"INBOX", *names}
                assert {*server.subscriptions(USER)} == {*await mail.subscriptions(USER)} == names - {"%there"}
