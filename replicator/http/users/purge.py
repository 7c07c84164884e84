"""The removal of a former user's mail, at all nodes. What cannot be told for sure is refused: mail would be lost."""

from __future__ import annotations

from http import HTTPStatus
from itertools import islice

import trio

from protocol.values import UidSet
from replicator.errors import OtherClusterError
from replicator.http.message import ProblemError
from replicator.http.services import HttpServices
from replicator.http.users.reach import check_all_reached
from replicator.mail.annotations import AT_ONCE_MAX
from replicator.mail.mailstore import INBOX, Folder, MailStore
from replicator.status import PurgeResult
from replicator.users import folded
from replicator.users.names import check_user_name

EXPUNGED_AT_ONCE = 1000
PURGE_S = 20.0  # less than the time limit of a request


async def purge(services: HttpServices, name: str) -> PurgeResult:
    """Remove mail, folders, subscriptions and annotations, as far as the time allows.

    If such a user is added again, syncs with a Dovecot bring what that has, and tell it of none of this.

    Raises ProblemError if this is, or may be, a user, or if nodes cannot be reached; MailError.
    """
    user = folded(name)
    await _check_former(services, user)
    risk = "more of this mail, or such a user"
    await check_all_reached(services, user, refusal="nothing is removed", risk=risk)
    removed = PurgeResult(user, 0, 0, more=True)
    with trio.move_on_after(PURGE_S):
        await services.mail.note_purge(user, None)
        folders = {mailbox.name for mailbox in await services.status.mailboxes(user)}
        for folder in sorted(folders - {INBOX}, reverse=True):  # what is below others comes first
            removed.messages += await _empty(services.mail, user, folder)
            await services.mail.delete_folder(user, folder)
            removed.folders += 1
        for subscribed in await services.mail.subscriptions(user):
            await services.mail.subscribe(user, subscribed, subscribed=False)
        await _clear(services.mail, user, None)
        uidnext = 1
        if INBOX in folders:
            inbox = await services.mail.folder(user, INBOX)
            await _clear(services.mail, user, inbox)
            removed.messages += await _empty(services.mail, user, INBOX)
            uidnext = (await services.mail.status(inbox)).uidnext
        await services.mail.note_purge(user, uidnext)
        removed.more = False
    return removed


async def _check_former(services: HttpServices, user: str) -> None:
    """Check that nobody has this name here, or opens this user's mail. Raises ProblemError, MailError."""
    try:
        check_user_name(user)  # what is no user's name may be an account of the cluster's own
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    try:
        if services.user_table is None:
            # Raises if users are not known now. A name with a detail may be that of a former user beside a present one.
            is_user = await services.users.ask(user) == user
            if not is_user:
                account = await services.oversight.account(user)  # as a server says now: the user may have come since
                is_user = account is not None and account.user == user
        else:
            is_user = await services.user_table.has(user)
            if is_user:
                await services.users.ask(user)
    except OtherClusterError:
        is_user = not _is_elsewhere(services, user)
    if is_user:
        raise ProblemError(HTTPStatus.CONFLICT, f"{user!r} is a user: delete the user first")
    table = services.user_table
    names = services.oversight.names_of(user) if table is None else await table.names_of(user)
    for name in names:
        if name != user and not _is_elsewhere(services, name):
            text = f"{user!r} is the user whose mail {name!r} opens: delete the user {name!r} first"
            raise ProblemError(HTTPStatus.CONFLICT, text)


def _is_elsewhere(services: HttpServices, user: str) -> bool:
    """Return True if the line of this name says another cluster of the site, and not none or one that is none."""
    servers = services.servers
    found = None if servers is None else servers.users.home_of(user)
    return found is not None and servers is not None and found[1] in {cluster.name for cluster in servers.clusters}


async def _empty(mail: MailStore, user: str, name: str) -> int:
    """Expunge all messages of a folder; return their number.

    The last ones go first: if this breaks off, a Dovecot has nothing below a mail that both have and that was expunged.
    """
    await mail.catch_up(user, name)
    view = await mail.open_mailbox(await mail.folder(user, name))
    messages = 0
    while uids := list(islice(reversed(view.messages), EXPUNGED_AT_ONCE)):
        await mail.expunge(view, UidSet.of(uids))
        messages += len(uids)
    return messages


async def _clear(mail: MailStore, user: str, folder: Folder | None) -> None:
    """Remove all annotations of a folder, or of the account."""
    while some := list(islice(await mail.annotations(user, folder), AT_ONCE_MAX)):
        await mail.annotate(user, folder, dict.fromkeys(some))
