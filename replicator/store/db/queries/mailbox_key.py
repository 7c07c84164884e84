"""The key of a mailbox or of a folder tree."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from replicator.mail.mailstore import Folder
from replicator.mail.view import MailboxView


class Mailboxed(Protocol):
    """Anything of one mailbox or tree: a folder, a view, an entry, a command MBOX."""

    @property
    def user(self) -> str:
        """User of the mailbox or tree."""

    @property
    def mailbox_id(self) -> bytes:
        """Id of the mailbox or tree."""

    @property
    def uidvalidity(self) -> int:
        """UIDVALIDITY of the mailbox; 0: a tree."""


class MailboxKey(NamedTuple):
    """The key of a mailbox or (UIDVALIDITY 0) of a folder tree.

    The UIDVALIDITY is the folder's own, even if clients see one of another server. So the keys of a mailbox at two
    times tell which is the later one.
    """

    user: str
    mailbox_id: bytes
    uidvalidity: int

    @classmethod
    def of(cls, one: Mailboxed) -> MailboxKey:
        """Return the key of the mailbox or tree that this is of."""
        own = one.own if isinstance(one, Folder | MailboxView) else None
        return cls(one.user, one.mailbox_id, one.uidvalidity if own is None else own)
