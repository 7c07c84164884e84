"""The check that the memory of a mailbox's last sync still tells which mails the peer knows by their UIDs."""

from __future__ import annotations

from replicator.dsync.node_mail.last_syncs import LastSync
from replicator.mail.dovecot_guids import COPY_MARK
from replicator.mail.mailstore import CoreMailStore, Folder


async def knows_all(mail: CoreMailStore, folder: Folder, last: LastSync) -> bool:
    """Return True if each UID that the peer knows names a mail, or an expunged one: none has got another UID.

    Return False, too, if branches that joined have brought back a mail below those that are new to the peer, or if
    there are copies: there were none at the last sync.
    """
    return not await mail.has_guid(folder, COPY_MARK) and await mail.accounts_for(folder, last.uids, last.common_uid)
