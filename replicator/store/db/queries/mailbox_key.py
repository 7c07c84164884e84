"""The key of a mailbox or of a folder tree."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Mailboxed(Protocol):
    """Anything of one mailbox or tree: a folder, a view, an entry, a command MBOX."""

    @property
    def user(self) -> str:
        """Its user."""

    @property
    def mailbox_id(self) -> bytes:
        """Its mailbox id, or its tree's id."""

    @property
    def uidvalidity(self) -> int:
        """Its UIDVALIDITY; 0: a tree."""


class MailboxKey(NamedTuple):
    """The key of a mailbox or (UIDVALIDITY 0) of a folder tree."""

    user: str
    mailbox_id: bytes
    uidvalidity: int

    @classmethod
    def of(cls, one: Mailboxed) -> MailboxKey:
        """Return the key of the mailbox or tree that this is of."""
        return cls(one.user, one.mailbox_id, one.uidvalidity)
