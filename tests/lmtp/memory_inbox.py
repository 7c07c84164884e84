from dataclasses import dataclass, field

import trio

from replicator.errors import MailError
from replicator.mailstore import Folder, NewMessage, SavedMessage
from replicator.users.names import candidates


@dataclass
class MemoryInboxes:
    """`failures` by user is what `save` raises; `gate`, if set, is what it waits for."""

    messages: dict[str, list[NewMessage]] = field(default_factory=dict)
    failures: dict[str, MailError] = field(default_factory=dict)
    gate: trio.Event | None = None
    saving: int = 0
    saving_at_once: int = 0

    async def folder(self, user: str, name: str) -> Folder:
        assert name == "INBOX"
        return Folder(user, name, user.encode(), 1)

    async def save(self, folder: Folder, message: NewMessage) -> SavedMessage:
        self.saving += 1
        self.saving_at_once = max(self.saving_at_once, self.saving)
        try:
            await trio.lowlevel.checkpoint()
            if self.gate is not None:
                await self.gate.wait()
            if folder.user in self.failures:
                raise self.failures[folder.user]
        finally:
            self.saving -= 1
        box = self.messages.setdefault(folder.user, [])
        box.append(message)
        return SavedMessage(1, len(box))

    def bodies(self, user: str) -> list[bytes]:
        """The messages without our trace headers, with those of several recipients."""
        return [message.text.split(b"\r\n", 4)[4] for message in self.messages.get(user, [])]


@dataclass
class Names:
    users: frozenset[str]

    def find(self, name: str) -> str | None:
        return next((user for user in candidates(name) if user in self.users), None)
