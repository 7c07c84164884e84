"""Requests that peers make by commands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from protocol.commands import (
    Annotate,
    Command,
    Copy,
    Create,
    Delete,
    Expunge,
    NewMessage,
    Raise,
    Rename,
    Renumber,
    Save,
    SaveAll,
    Store,
    Subscribe,
)
from protocol.stream_codec import ProtocolError
from replicator.replication.links.entry_codec import values_of
from replicator.replication.links.link import PeerLink
from replicator.replication.writes.requests.change_request import ChangeRequest
from replicator.replication.writes.requests.folders import (
    AnnotateRequest,
    CreateRequest,
    DeleteRequest,
    NewId,
    RenameRequest,
    SubscribeRequest,
)
from replicator.replication.writes.requests.messages import (
    SAVE_ALL_BYTES,
    CopyRequest,
    ExpungeRequest,
    RaiseRequest,
    RenumberRequest,
    SaveAllRequest,
    SaveRequest,
    StoreRequest,
)
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.entry_validation import NUMBER_MAX, are_annotations
from replicator.store.db.queries import MailboxKey
from replicator.store.log.sequencing.sequencer import NewMail


def _mailbox(link: PeerLink, number: int) -> MailboxKey:
    found = link.key_of(number)
    if found.uidvalidity == 0:
        raise ProtocolError(f"mailbox number {number} is a folder tree, which cannot hold mail")
    return found


def saves_from(link: PeerLink, save: Save, stored: StoredBody) -> list[ChangeRequest]:
    """Return the requests of a peer's SAVE, whose message this node has as `stored`. Raises ProtocolError."""
    _check_received(save)
    return [
        SaveRequest(_mailbox(link, number), save.guid, save.received_ms, save.flags, stored, save.uid)
        for number in save.mailboxes
    ]


def save_all_from(link: PeerLink, save_all: SaveAll, stored: Sequence[StoredBody]) -> SaveAllRequest:
    """Return the request of a peer's SAVE-ALL, whose messages this node has as `stored`. Raises ProtocolError."""
    size_bytes = sum(one.size_bytes for one in stored)
    if size_bytes > SAVE_ALL_BYTES:
        raise ProtocolError(f"a SAVE-ALL brings {size_bytes} bytes; the limit is {SAVE_ALL_BYTES}")
    if len({message.guid for message in save_all.messages}) < len(save_all.messages):
        raise ProtocolError("a SAVE-ALL has two messages with the same GUID")
    for message in save_all.messages:
        _check_received(message)
    messages = (
        NewMail(message.guid, message.received_ms, message.flags, one, message.uid)
        for message, one in zip(save_all.messages, stored, strict=True)
    )
    return SaveAllRequest(_mailbox(link, save_all.mailbox), tuple(messages))


def _check_received(save: Save | NewMessage) -> None:
    if abs(save.received_ms) >= NUMBER_MAX:
        raise ProtocolError(f"a message has an impossible time of receipt: {save.received_ms} ms from the epoch")


def from_command(link: PeerLink, command: Command, new_id: NewId) -> list[ChangeRequest]:
    """Return the changes that any other command of a peer requests; none if it is no change.

    Raises ProtocolError for a wrong mailbox number, and for a COPY with more or fewer GUIDs than UIDs.
    """
    key = partial(_mailbox, link)
    match command:
        case Copy():
            if len(command.guids) != len(command.source_uids):
                raise ProtocolError("a COPY must give one GUID for each UID")
            source, destination = key(command.source), key(command.destination)
            spare = command.guids if command.once else tuple(new_id() for _ in command.guids)
            return [CopyRequest(source, destination, command.source_uids, command.guids, spare)]
        case Expunge():
            return [ExpungeRequest(key(command.mailbox), command.uids, command.head)]
        case Store():
            return [
                StoreRequest(
                    key(command.mailbox), command.uids, command.head, command.added, command.removed,
                    command.unchanged_since,
                )
            ]  # fmt: skip
        case Raise():
            return [RaiseRequest(key(command.mailbox), command.uidnext, command.modseq or 0)]
        case Renumber():
            if not len(command.guids) == len(command.wanted) == len(command.uids) == len({*command.guids}):
                raise ProtocolError("a RENUMBER must give one GUID and one new UID for each UID")
            return [RenumberRequest(key(command.mailbox), command.uids, command.guids, command.wanted)]
        case _:
            return _of_tree(command, new_id)


def _of_tree(command: Command, new_id: NewId) -> list[ChangeRequest]:
    match command:
        case Create():
            return [CreateRequest(command.user, command.name, command.mailbox_id, new_id, command.use)]
        case Rename():
            return [RenameRequest(command.user, command.mailbox_id, command.name, new_id)]
        case Delete():
            return [DeleteRequest(command.user, command.mailbox_id)]
        case Subscribe():
            return [SubscribeRequest(command.user, command.name, command.subscribed)]
        case Annotate():
            values = values_of(command)
            if not are_annotations(values):
                raise ProtocolError("an ANNOTATE has an impossible name or value")
            return [AnnotateRequest(command.user, command.mailbox_id, values)]
        case _:
            return []
