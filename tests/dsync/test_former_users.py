"""Removal of the memory of syncs, once users and their mail are gone for sure."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.values import UidSet
from replicator.dsync.node_mail import former_users
from replicator.dsync.node_mail.former_users import FormerUsers
from replicator.dsync.node_mail.last_syncs import LastSyncFiles, LastSyncs
from replicator.errors import OtherClusterError, UsersUnavailableError
from replicator.mail.mailstore import NewMessage
from tests.end_to_end.helpers.in_process import running
from tests.end_to_end.helpers.two_nodes import configs
from tests.one_node import HookedMail, Names, one_node

USER, FORMER, PURGED, STRANGER = "u1", "former", "purged", "stranger"


class Source(Names):
    """The users, unless they cannot be known."""

    error: UsersUnavailableError | None = None

    async def ask(self, name: str) -> str | None:
        if self.error is not None:
            raise self.error
        return await super().ask(name)


async def remember(files: LastSyncFiles, user: str) -> None:
    syncs = LastSyncs()
    syncs.note_full("dovecot:2425", 1)
    await files.save(user, syncs)


async def remembered(files: LastSyncFiles) -> set[str]:
    return {user for user in (USER, FORMER, PURGED, STRANGER) if (await files.load(user)).full}


async def purge(mail: HookedMail, user: str) -> None:
    """Remove all mail, as `replicator user purge` does, which leaves INBOX."""
    view = await mail.open_mailbox(await mail.folder(user, "INBOX"))
    await mail.expunge(view, UidSet.of(view.messages))


async def users_with_mail(mail: HookedMail, files: LastSyncFiles) -> None:
    """Let a user, a former one and a purged one have files, and somebody who never had mail here."""
    await mail.folder(USER, "INBOX")
    for user in (FORMER, PURGED):
        await mail.save(await mail.folder(user, "INBOX"), NewMessage(b"Subject: 1\r\n\r\n"))
    await purge(mail, PURGED)
    for user in (USER, FORMER, PURGED, STRANGER):
        await remember(files, user)


async def test_who_is_purged_is_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    files = LastSyncFiles(tmp_path / "dovecots")
    async with one_node(tmp_path) as mail:
        await users_with_mail(mail, files)
        [of_purged] = (tmp_path / "dovecots").glob(f"??/{files.name_of(PURGED)[2:]}")
        of_purged.with_suffix(".new").write_bytes(b"as a crash leaves it")
        await FormerUsers(mail, Names(USER), files).remove_files()
        assert await remembered(files) == {USER, FORMER}
        assert len([path for path in (tmp_path / "dovecots").rglob("*") if path.is_file()]) == 2
        assert "forgot the syncs of 2 former users" in caplog.text
        await purge(mail, FORMER)
        await FormerUsers(mail, Names(USER), files).remove_files()
        assert await remembered(files) == {USER}


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (UsersUnavailableError("the directory is down"), {USER, FORMER, PURGED}),
        (OtherClusterError("the mail is in another cluster"), {FORMER}),
    ],
)
async def test_whom_a_source_does_not_tell_is_remembered(
    tmp_path: Path, error: UsersUnavailableError, left: set[str]
) -> None:
    files, users = LastSyncFiles(tmp_path / "dovecots"), Source(USER)
    users.error = error
    async with one_node(tmp_path) as mail:
        await users_with_mail(mail, files)
        await FormerUsers(mail, users, files).remove_files()
        assert await remembered(files) == left


async def test_files_are_looked_for_again_and_again(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(former_users, "EVERY_S", 100.0)  # in place of days, in which a node has other work each second
    looks = list[float]()

    class Files(LastSyncFiles):
        async def names(self) -> set[str]:
            looks.append(trio.current_time())
            await trio.lowlevel.checkpoint()
            raise PermissionError(13, "denied")

    async with one_node(tmp_path) as mail:
        with trio.move_on_after(former_users.FIRST_S + 2.5 * former_users.EVERY_S):
            await FormerUsers(mail, Names(), Files(tmp_path)).run()
    first = former_users.FIRST_S
    assert looks == [first + number * former_users.EVERY_S for number in range(3)]
    assert autojump_clock.current_time() > first
    assert "cannot be looked for" in caplog.text


async def test_a_node_forgets_former_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former_users, "FIRST_S", 0.1)
    one, _ = configs(tmp_path)
    files = LastSyncFiles(one.node.dovecots)
    await remember(files, STRANGER)
    async with running([one]):
        with trio.fail_after(30):
            while await remembered(files):  # looks at the disk, which takes a while
                pass
