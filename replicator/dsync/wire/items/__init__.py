"""Typed records: what each kind of line says, and how it is written.

`session`, `folders`, `mailboxes` and `mails` have them by what they are about; other modules use them from here. GUIDs
of mails are texts, as Dovecot compares them; ids of mailboxes are 16 bytes. Times are in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping

from replicator.dsync.wire.items.folders import Deletions, TreeNode
from replicator.dsync.wire.items.mailboxes import Attribute, Mailbox, MailboxState
from replicator.dsync.wire.items.mails import ChangeType, Mail, MailChange, MailRequest
from replicator.dsync.wire.items.session import CHANGED, FULL, STATEFUL, Finish, Handshake

Item = Handshake | MailboxState | TreeNode | Deletions | Mailbox | Attribute | MailChange | MailRequest | Mail | Finish

TYPES: Mapping[str, type[Item]] = {
    "H": Handshake,
    "S": MailboxState,
    "N": TreeNode,
    "D": Deletions,
    "B": Mailbox,
    "A": Attribute,
    "C": MailChange,
    "R": MailRequest,
    "M": Mail,
    "F": Finish,
}
LETTERS: Mapping[type[object], str] = {kind: letter for letter, kind in TYPES.items()}

__all__ = [
    "CHANGED",
    "FULL",
    "LETTERS",
    "STATEFUL",
    "TYPES",
    "Attribute",
    "ChangeType",
    "Deletions",
    "Finish",
    "Handshake",
    "Item",
    "Mail",
    "MailChange",
    "MailRequest",
    "Mailbox",
    "MailboxState",
    "TreeNode",
]
