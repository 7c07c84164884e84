"""The check that the memory of a mailbox's last sync still tells which mails the peer knows by their UIDs."""

from __future__ import annotations

import trio

from protocol.values import UidSet
from replicator.dsync.node_mail.last_syncs import LastSync
from replicator.dsync.node_mail.read_mails import AT_ONCE, changed
from replicator.dsync.rules.copies import is_copy
from replicator.mail.mailstore import CoreMailStore, Folder
from replicator.mail.view import MailboxView


async def knows_all(mail: CoreMailStore, folder: Folder, last: LastSync) -> bool:
    """Return True if each UID that the peer knows names a mail, or an expunged one: none has got another UID.

    Return False, too, if there are copies: there were none at the last sync.
    """
    view, uids = await mail.open_mailbox(folder), last.uids
    if any(is_copy(message.guid) for message in await changed(view, last.common_uid, last.common_modseq)):
        return False
    if len(uids.ranges) <= AT_ONCE and _count(view, uids) == len(uids):
        return True
    expunged = await mail.expunged(folder)
    new = await trio.to_thread.run_sync(lambda: UidSet.of(expunged).without(last.expunged))
    if len(uids.ranges) + len(new) <= AT_ONCE:
        gone = sum(uid in uids and uid not in view.messages for uid in new)
        return _count(view, uids) + gone == len(uids)
    messages = view.snapshot()
    return await trio.to_thread.run_sync(
        lambda: all(uid in expunged for uid in uids.without(UidSet.of(message.uid for message in messages)))
    )


def _count(view: MailboxView, uids: UidSet) -> int:
    """Return how many of these UIDs name a mail, without a look at each."""
    mails = view.messages
    return sum(mails.bisect_right(high) - mails.bisect_left(low) for low, high in uids.ranges)
