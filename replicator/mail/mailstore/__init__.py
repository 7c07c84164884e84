"""The interface of the node's mail that the doors (IMAP, LMTP, HTTP) use, and behind which replication works.

Every change goes to the mailbox's master, on whichever node that is; a method returns when the change is on the disks
of `durability.copies` nodes and this node shows it. UIDs name the messages that the view shows at the time of the call,
even if a merge renumbers them before the change is made. Every method has its own deadline. Cancelling is safe; the
change may or may not happen then. Errors are those of `replicator.errors`.

INBOX is created for every user on first access. The methods: `mail_store`, for all doors; `core_mail_store`, for
imports and Dovecot's dsync besides. What they take and return: `values`, `bodies`, `folder_names`. What doors have kept
of bodies: `derived_data`.
"""

from replicator.mail.mailstore.bodies import (
    MESSAGE_BYTES_MAX,
    SLOWEST_BYTES_S,
    BodyReader,
    BodySink,
    ReceivedBody,
    needs_whole,
    read_all,
    read_begin,
    sending_s,
)
from replicator.mail.mailstore.core_mail_store import ANY_DOVECOT, CoreMailStore
from replicator.mail.mailstore.derived_data import MessageIdReader, Outliner, SearchTextMaker, SearchTextSlice
from replicator.mail.mailstore.folder_names import (
    INBOX,
    MAX_LEVELS,
    SEPARATOR,
    canonical_name,
    check_folder_name,
    check_new_name,
)
from replicator.mail.mailstore.mail_store import MailStore
from replicator.mail.mailstore.values import (
    CopiedMessages,
    Folder,
    FolderStatus,
    NewMessage,
    Quota,
    SavedMessage,
    StoreResult,
)

__all__ = [
    "ANY_DOVECOT",
    "INBOX",
    "MAX_LEVELS",
    "MESSAGE_BYTES_MAX",
    "SEPARATOR",
    "SLOWEST_BYTES_S",
    "BodyReader",
    "BodySink",
    "CopiedMessages",
    "CoreMailStore",
    "Folder",
    "FolderStatus",
    "MailStore",
    "MessageIdReader",
    "NewMessage",
    "Outliner",
    "Quota",
    "ReceivedBody",
    "SavedMessage",
    "SearchTextMaker",
    "SearchTextSlice",
    "StoreResult",
    "canonical_name",
    "check_folder_name",
    "check_new_name",
    "needs_whole",
    "read_all",
    "read_begin",
    "sending_s",
]
