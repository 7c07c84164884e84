"""Types of the JSON that has no data class of its own, in answers and in bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, TypedDict


class HealthDocument(TypedDict):
    """The readiness of a node. Strangers are told no reasons."""

    sid: str
    healthy: bool
    reasons: NotRequired[list[str]]


class LivenessDocument(TypedDict):
    """The name of a node that runs."""

    sid: str


class StoppingDocument(TypedDict):
    """The name of a node that stops. `managed`: systemd has started it, and may start it anew."""

    sid: str
    managed: bool


class FolderDocument(TypedDict):
    """A folder. `mailbox_id` is hexadecimal."""

    name: str
    mailbox_id: str
    uidvalidity: int


class NumbersDocument(TypedDict):
    """The numbers of a folder's mailbox, as clients see them."""

    uidvalidity: int
    uidnext: int
    highestmodseq: int


class SubscriptionDocument(TypedDict):
    """A name, and whether the user is subscribed to it."""

    name: str
    subscribed: bool


class MasterDocument(TypedDict):
    """The SID of a folder's master; None: not known."""

    master: str | None


class HashedMessage(TypedDict):
    """A message by its UID, the hash of its body, and its GUID, both hexadecimal."""

    uid: int
    sha256: str
    guid: str


class MessagesDocument(TypedDict):
    """Some of a folder's messages. `more`: there are others above the last UID."""

    uidvalidity: int
    messages: list[HashedMessage]
    more: bool


class SavedDocument(TypedDict):
    """The place of a new message; `uid` None: the node does not show it yet."""

    uidvalidity: int
    uid: int | None


class BatchDocument(TypedDict):
    """The places of new messages."""

    uidvalidity: int
    uids: list[int | None]


class UsersDocument(TypedDict):
    """The number of users that were added."""

    users: int


class UserDocument(TypedDict):
    """The user who was changed."""

    user: str


class DisabledDocument(TypedDict):
    """A user, and whether the user is kept from logging in; whose mail the name opens, and the other names that do."""

    user: str
    disabled: bool
    mail_user: str
    other_names: list[str]


class DeletedDocument(TypedDict):
    """A user who was removed, whose mail that name opened, and the other names that open it."""

    user: str
    mail_user: str
    other_names: list[str]


class RenamedDocument(TypedDict):
    """A user by the new log-in name, and the user whose mail that opens."""

    user: str
    mail_user: str


class Disabled(TypedDict):
    """The wish that a user be kept from logging in, or let in again."""

    disabled: bool


class TriedPassword(TypedDict):
    """A password to try, and the IP address of the client for whom it is; without one, the address does not matter."""

    password: str
    address: NotRequired[str | None]


class EndedDocument(TypedDict):
    """The number of penalties that ended."""

    ended: int


class NewUsers(TypedDict):
    """Lines of a passwd-file."""

    lines: list[str]
    replace: NotRequired[bool | None]


class ExpungeDocument(TypedDict):
    """UIDs to expunge, as a set, and whose they are: of which node, and under which UIDVALIDITY."""

    node: str
    uidvalidity: int
    uids: str


class TakenChangeDocument(TypedDict):
    """Flags for the messages with these UIDs, of this UIDVALIDITY, that have the flags `was`; null: expunge them."""

    uidvalidity: int
    uids: str
    was: list[str]
    flags: list[str] | None


class ChangesDocument(TypedDict):
    """The UIDs, as a set, of the messages that were changed; it may be empty."""

    changed: str


class NewPassword(TypedDict):
    """The hash of a password, with its scheme."""

    hash: str


class PlannedDocument(TypedDict):
    """A mailbox of a repair plan. `heads`: by SID, the origin and number of an entry, or None."""

    user: str
    mailbox: str
    uidvalidity: int
    heads: Mapping[str, tuple[str, int] | None]
    damaged: NotRequired[bool | None]


class ApplyDocument(TypedDict):
    """The options of an apply."""

    mailboxes: NotRequired[list[PlannedDocument] | None]
    dry_run: NotRequired[bool | None]
    rate: NotRequired[int | None]
    texts: NotRequired[bool | None]


class ProblemDocument(TypedDict):
    """A problem (RFC 9457) of type `about:blank`."""

    title: str
    status: int
    detail: str
