"""The GUIDs of a Dovecot's mails, which they keep here where a sync with that Dovecot may find them equal.

A sync takes both sides for equal up to a mail that has one UID and one GUID on both, and takes for expunged what a side
lacks below it. So a mail keeps its GUID only as long as the folder has all mail of the source, under the same UIDs, and
no other. From the first gap on, mails have GUIDs of this cluster: a sync doubles them, and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from replicator.cli.api.client import HashedMail
from replicator.mail.dovecot_guids import free_guid


class Guids:
    """The GUIDs of a folder's mails. `taken`: UIDs at the source of all mail that is here, or was; it grows."""

    def __init__(self, mails: Sequence[HashedMail], taken: Collection[int]) -> None:
        """`mails`: all that the folder has before the import."""
        self._guids = {mail.guid for mail in mails}
        self._uids = iter(sorted(mail.uid for mail in mails))
        self._uid = next(self._uids, None)
        self._taken = taken
        self._are_kept = True

    def give_up(self) -> None:
        """Keep no more of them: the folder lacks a mail of the source, or has one under another UID."""
        self._are_kept = False

    def use(self, guid: bytes | None, uid: int) -> bytes | None:
        """Return the GUID of the next mail to be saved, which gets this UID; None: one of this cluster.

        Dovecot gives copies the GUID of their source. Beyond as many as a sync can tell apart, they have none.
        """
        while self._uid is not None and self._uid < uid:
            if self._uid not in self._taken:
                self.give_up()
            self._uid = next(self._uids, None)
        free = free_guid(guid, self._guids) if guid is not None and self._are_kept else None
        if free is not None:
            self._guids.add(free)
        return free

    def put_back(self, guids: Iterable[bytes | None]) -> None:
        """Take it that mails with these GUIDs were not saved."""
        self._guids.difference_update(guid for guid in guids if guid is not None)
