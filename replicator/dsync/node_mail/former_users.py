"""Removal of what the node remembers of syncs of users who are none any more: some time after the start, then daily.

A former user's file stays as long as the mail does (`replicator user purge`): the user may come back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import trio

from replicator.dsync.node_mail.last_syncs import LastSyncFiles
from replicator.dsync.users import Users, is_former
from replicator.errors import MailError
from replicator.mail.mailstore import CoreMailStore

log = logging.getLogger(__name__)

FIRST_S = 600.0
"""From the start of the node: catching up with peers comes first."""

EVERY_S = 86_400.0

PAGE = 1000
"""Users whose names are read at once."""


@dataclass(frozen=True, slots=True)
class FormerUsers:
    """The users whose mail has been here, and their files."""

    mail: CoreMailStore
    users: Users
    files: LastSyncFiles

    async def run(self) -> None:
        """Remove files of former users at intervals, until cancelled."""
        await trio.sleep(FIRST_S)
        while True:
            try:
                await self.remove_files()
            except (MailError, OSError) as error:
                log.warning("files of former users' syncs with Dovecots cannot be looked for: %s", error)
            await trio.sleep(EVERY_S)

    async def remove_files(self) -> None:
        """Remove files of users who are none, and have no mail here. Those of whom that is not known now stay.

        Raises MailError, OSError.
        """
        strays = await self.files.names()  # before the users: who comes meanwhile has no file among these
        last = ""
        while users := await self.mail.users_after(last, PAGE):
            for user in users:
                name = self.files.name_of(user)
                if name in strays and not await self._is_gone(user):
                    strays.remove(name)
            last = users[-1]
        await self.files.remove(strays)
        if strays:
            log.info("forgot the syncs of %d former users with Dovecots", len(strays))

    async def _is_gone(self, user: str) -> bool:
        try:
            return await is_former(self.users, user) and (await self.mail.quota(user)).messages == 0
        except MailError:
            return False
