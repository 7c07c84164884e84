"""The views of a door, which follow what the core publishes, and the changes that are made by them."""

from __future__ import annotations

import gc
import random
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.values import UID_MAX, Dot, UidSet
from replicator.errors import ContentUnavailableError
from replicator.mail.mailstore import Folder, NewMessage, read_all
from replicator.mail.view import MailboxView, ViewChange
from replicator.store.db.memory import view_cache
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Commit
from replicator.workers.both_ends.mail_feed import SLICE_MESSAGES, MailFeed
from replicator.workers.core.mail import MailCalls
from replicator.workers.door import mail as mail_module
from replicator.workers.door.door import ToldDamage
from replicator.workers.door.mail import RemoteMail
from tests.one_door import channels, mail_ends, remote_mail
from tests.one_node import Gate, HookedMail, one_node

ALL = UidSet.of_ranges([(1, UID_MAX)])
SEEN = frozenset({"\\Seen"})
MANY = 2 * mail_module.SLICE_MESSAGES + 7
assert MANY > 2 * SLICE_MESSAGES


@pytest.fixture
async def mail(tmp_path: Path) -> AsyncIterator[HookedMail]:
    async with one_node(tmp_path) as mail:
        yield mail


@pytest.fixture
async def door(mail: HookedMail) -> AsyncIterator[RemoteMail]:
    async with remote_mail(mail) as door:
        yield door


async def inbox_of(mail: HookedMail | RemoteMail) -> tuple[Folder, MailboxView]:
    inbox = await mail.folder("alice", "INBOX")
    return inbox, await mail.open_mailbox(inbox)


def feed_of(mail: HookedMail) -> MailFeed:
    """Return what the core tells the door."""
    feed = mail.store.listeners[-1].__self__  # type: ignore[attr-defined]
    assert isinstance(feed, MailFeed)
    return feed


def shown(view: MailboxView) -> tuple[object, ...]:
    """Return all that a view shows."""
    flags = {flag: [*uids] for flag, uids in view.by_flag.items()}
    return view.uidvalidity, view.uidnext, view.highestmodseq, view.head, [*view.messages.values()], flags


async def test_a_view_at_a_door_shows_what_the_core_shows(mail: HookedMail, door: RemoteMail) -> None:
    inbox, view = await inbox_of(mail)
    await mail.save(inbox, NewMessage(b"before"))
    _, at_door = await inbox_of(door)
    assert shown(at_door) == shown(view)
    drawn = random.Random(5)
    for number in range(60):
        is_at_door = drawn.random() < 0.5
        by: HookedMail | RemoteMail = door if is_at_door else mail
        of = at_door if is_at_door else view
        uids = UidSet.of(drawn.sample(range(1, view.uidnext + 1), 2))
        match drawn.randrange(4):
            case 0:
                await by.expunge(of, uids)
            case 1:
                await by.store_flags(of, uids, added=frozenset({drawn.choice("abc")}))
            case 2:
                await by.copy(of, uids, inbox)
            case _:
                await by.save_all(inbox, [NewMessage(b"%d.%d" % (number, part)) for part in range(2)])
        if not is_at_door:
            await trio.testing.wait_all_tasks_blocked()
        assert shown(at_door) == shown(view)
    assert view.messages


async def test_whoever_is_answered_sees_what_it_has_changed(mail: HookedMail, door: RemoteMail) -> None:
    inbox, at_door = await inbox_of(door)
    [*_, last] = await door.save_all(inbox, [NewMessage(b"%d" % number) for number in range(MANY)])
    assert [*at_door.messages] == [*range(1, MANY + 1)]
    assert last.uid == MANY
    assert not (await door.store_flags(at_door, ALL, added=SEEN)).refused
    assert at_door.unseen == 0
    other = await door.create_folder("alice", "Other")
    copied = await door.copy(at_door, ALL, other)
    assert [*copied.uids] == [(uid, uid) for uid in range(1, MANY + 1)]
    moved = await door.move(at_door, UidSet.of_ranges([(2, MANY)]), other)
    assert len(moved.uids) == MANY - 1
    assert [*at_door.messages] == [1]
    await door.expunge(at_door, ALL)
    assert not at_door.messages
    _, view = await inbox_of(mail)
    assert shown(at_door) == shown(view)


async def test_changes_are_told_in_their_order_however_large_they_are(mail: HookedMail, door: RemoteMail) -> None:
    inbox, at_door = await inbox_of(door)
    await door.save_all(inbox, [NewMessage(b"%d" % number) for number in range(MANY)])
    feed, modseq = feed_of(mail), at_door.highestmodseq
    flagged = tuple(message._replace(flags=SEEN, modseq=modseq + 1) for message in at_door.messages.values())
    head = Dot("dc1.0", 1)
    large = ViewChange(inbox.mailbox_id, modseq + 1, MANY + 1, flagged, head=head)
    small = ViewChange(inbox.mailbox_id, modseq + 2, MANY + 1, expunged=(2,), head=head._replace(seq=2))
    for change in (large, small):
        feed._note(Commit(changes=[change]))
    await feed.told()
    await trio.testing.wait_all_tasks_blocked()
    assert at_door.unseen == 0
    assert 2 not in at_door.messages
    assert (at_door.highestmodseq, at_door.head) == (modseq + 2, small.head)


async def test_the_core_takes_messages_as_the_door_shows_them(mail: HookedMail) -> None:
    async with mail_ends(mail) as (calls, door):
        inbox, at_door = await inbox_of(door)
        await door.save_all(inbox, [NewMessage(b"x"), NewMessage(b"y")])
        async with door._named(at_door, UidSet.of([2])) as named:
            seen = calls._seen(named)
    assert seen == (*MailboxKey.of(at_door), at_door.head, [at_door.messages[2]])


async def test_messages_named_in_vain_are_forgotten(mail: HookedMail, autojump_clock: MockClock) -> None:  # noqa: ARG001
    async with mail_ends(mail) as (calls, door):
        inbox, at_door = await inbox_of(door)
        await door.save_all(inbox, [NewMessage(b"%d" % number) for number in range(MANY)])
        mail.before_change = Gate(open=trio.Event())
        for seconds in (0, 1):  # while the messages go ahead, and while they are changed
            with trio.move_on_after(seconds):
                await door.store_flags(at_door, ALL, added=SEEN)
            await trio.testing.wait_all_tasks_blocked()
            assert not calls._named
    assert at_door.unseen == MANY


async def test_a_view_that_is_read_while_mail_comes_misses_none(mail: HookedMail, door: RemoteMail) -> None:
    inbox, view = await inbox_of(mail)
    views: list[MailboxView] = []

    async def keep_opening() -> None:
        for _ in range(5):
            views.append(await door.open_mailbox(inbox))  # noqa: PERF401 (the others go on meanwhile)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_opening)
        for number in range(20):
            await mail.save(inbox, NewMessage(b"%d" % number))
    await trio.testing.wait_all_tasks_blocked()
    assert shown(views[0]) == shown(view)
    assert len({id(one) for one in views}) == 1


async def test_the_core_tells_a_door_of_what_it_looks_at_only(
    mail: HookedMail, door: RemoteMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_cache, "MAX_IDLE_MESSAGES", 1)
    inbox, at_door = await inbox_of(door)
    other = await door.create_folder("alice", "Other")
    feed = feed_of(mail)
    assert feed._followed == {inbox.mailbox_id}
    await door.open_mailbox(other)  # and no more: the cache keeps one
    del at_door
    gc.collect()
    await mail.save(inbox, NewMessage(b"x"))
    await trio.testing.wait_all_tasks_blocked()
    assert feed._followed == {other.mailbox_id}
    _, again = await inbox_of(door)
    await mail.save(inbox, NewMessage(b"y"))
    await trio.testing.wait_all_tasks_blocked()
    assert [*again.messages] == [1, 2]


async def test_a_deleted_folder_ends_its_view(mail: HookedMail, door: RemoteMail) -> None:
    folder = await door.create_folder("alice", "Short")
    at_door = await door.open_mailbox(folder)
    with at_door.subscribe() as subscription:
        await mail.delete_folder("alice", "Short")
        await subscription.wait()
    assert at_door.deleted


async def test_folders_are_watched_as_long_as_somebody_wants_to_know(mail: HookedMail, door: RemoteMail) -> None:
    subscription = await door.watch_folders("alice")
    other = await door.watch_folders("alice")
    other.close()
    await mail.create_folder("alice", "New")
    await subscription.wait()
    assert [event.name for event in (await subscription.take()).events] == ["New"]
    await door.create_folder("alice", "Own")
    assert [event.name for event in (await subscription.take()).events] == ["Own"]
    feed = feed_of(mail)
    subscription.close()
    await mail.create_folder("alice", "Unseen")
    await trio.testing.wait_all_tasks_blocked()
    assert not feed._watched


@pytest.mark.parametrize("size", [0, 1000, 300_000])
async def test_bodies_are_read_byte_for_byte(mail: HookedMail, door: RemoteMail, size: int) -> None:
    body = b"Subject: x\r\n\r\n" + random.Random(1).randbytes(size).hex().encode()
    inbox, at_door = await inbox_of(door)
    await mail.save(inbox, NewMessage(body))
    await trio.testing.wait_all_tasks_blocked()
    assert await read_all(await door.read_body(at_door.messages[1])) == body


async def test_a_body_that_is_lost_cannot_be_read(mail: HookedMail, door: RemoteMail) -> None:
    inbox, at_door = await inbox_of(door)
    await door.save(inbox, NewMessage(b"x"))
    await mail.lose_body(at_door.messages[1])
    assert not await door.read_bodies([at_door.messages[1]], 1000)
    with pytest.raises(ContentUnavailableError):
        await door.read_body(at_door.messages[1])


async def test_many_bodies_of_one_call_go_ahead(mail: HookedMail, door: RemoteMail) -> None:
    drawn = random.Random(2)
    bodies = [drawn.randbytes(60_000) for _ in range(100)] + [drawn.randbytes(100_000)]
    inbox, _ = await inbox_of(door)
    await door.save_all(inbox, [NewMessage(body) for body in bodies])
    assert await mail.bodies("alice") == bodies


async def test_damage_that_a_door_meets_is_the_nodes(mail: HookedMail) -> None:
    async with channels() as (core, door):
        calls = MailCalls(core, mail, mail.store)
        damage = ToldDamage(mail.store.path, lambda: 0, door)
        for _ in range(2):
            damage.note(sqlite3.DatabaseError("page 7 is malformed"))
        await trio.testing.wait_all_tasks_blocked()
    await calls.close()
    assert mail.store.damage.found == damage.found == "page 7 is malformed"


async def test_annotations_and_subscriptions_may_be_many(mail: HookedMail, door: RemoteMail) -> None:
    inbox, _ = await inbox_of(door)
    values = {f"/shared/vendor/v/{number}": b"%d" % number for number in range(20)}
    await mail.annotate("alice", inbox, values)
    assert await door.annotations("alice", inbox) == values == await mail.annotations("alice", inbox)
    for name in ("b", "a"):
        await door.subscribe("alice", name, subscribed=True)
    assert await door.subscriptions("alice") == await mail.subscriptions("alice") == ["a", "b"]
