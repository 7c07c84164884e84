"""The check that the memory of a mailbox's last sync still tells which mails the peer knows by their UIDs."""

from __future__ import annotations

import trio

from replicator.dsync.node_mail.last_syncs import LastSync
from replicator.dsync.rules.mails.copies import have_copies
from replicator.mail.mailstore import CoreMailStore, Folder


async def knows_all(mail: CoreMailStore, folder: Folder, last: LastSync) -> bool:
    """Return True if each UID that the peer knows names a mail, or an expunged one: none has got another UID.

    Return False, too, if branches that joined have brought back a mail below those that are new to the peer, or if
    there are copies: there were none at the last sync.
    """
    changed = await mail.list_changed(folder, last.common_uid, last.common_modseq)
    if await trio.to_thread.run_sync(have_copies, changed):
        return False
    return await mail.accounts_for(folder, last.uids, last.common_uid)
