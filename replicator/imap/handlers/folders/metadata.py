"""GETMETADATA and SETMETADATA (RFC 5464). Private and shared annotations alike are the user's own.

The special uses of RFC 6154 are shown as LIST shows them. `/shared/admin` is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import inf

from replicator.errors import MailboxFullError
from replicator.imap.session import Completion, Session
from replicator.imap.special_uses import checked_uses, special_uses, uses_of
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import metadata_response
from replicator.mail.annotations import SPECIAL_USE
from replicator.mail.mailstore import SEPARATOR, Folder
from replicator.mail.watched_folders import AnnotationEvent, value_digest

ADMIN = "/shared/admin"  # RFC 5464 section 3.2.1.1: clients cannot change it
TOO_MANY = "METADATA TOOMANY"  # RFC 5464 section 4.3


async def shown_uses(session: Session, ids: Mapping[str, bytes]) -> dict[str, str]:
    """Return the special uses of the user's folders, by name. `ids`: those of all folders, by name."""
    annotated = await session.mail.annotated(session.user, SPECIAL_USE)
    assigned = {name: uses_of(annotated[key]) for name, key in ids.items() if key in annotated}
    return await session.services.parsing.apart(partial(special_uses, ids, assigned))


async def get_metadata(session: Session, command: c.GetMetadata) -> Completion:
    """Run GETMETADATA."""
    await session.mail.catch_up(session.user)
    folder = await _home(session, command.mailbox)
    known = dict(await session.mail.annotations(session.user, folder))
    if folder is not None and any(_is_below(SPECIAL_USE, entry, command.depth) for entry in command.entries):
        folders = {one.name: one.mailbox_id for one in await session.mail.folders(session.user)}
        known.pop(SPECIAL_USE, None)
        if uses := (await shown_uses(session, folders)).get(folder.name):
            known[SPECIAL_USE] = uses.encode()
    # A command may name thousands of entries, and ask for a MiB of values.
    response, longest = await session.services.parsing.apart(partial(_answer, command, known, utf8=session.aware.utf8))
    await session.write(response)
    is_over = command.max_size is not None and longest > command.max_size
    return Completion("Annotations listed", f"METADATA LONGENTRIES {longest}" if is_over else None)


def _answer(command: c.GetMetadata, known: Mapping[str, bytes], *, utf8: bool) -> tuple[list[bytes], int]:
    """Return the METADATA response, if there is any, and the size of the longest value. Runs in a thread."""
    found = dict(pair for entry in command.entries for pair in _selected(known, entry, command.depth))
    most = inf if command.max_size is None else command.max_size
    shown = {name: value for name, value in found.items() if value is None or len(value) <= most}
    longest = max((len(value) for value in found.values() if value is not None), default=0)
    return metadata_response(command.mailbox, shown, utf8=utf8) if shown else [], longest


async def set_metadata(session: Session, command: c.SetMetadata) -> Completion:
    """Run SETMETADATA."""
    await session.mail.catch_up(session.user)
    folder = await _home(session, command.mailbox)
    values = dict(command.values)
    for value in values.values():
        if value is not None and len(value) > session.limits.imap_annotation_bytes:
            raise too_large(session)
    if folder is None and ADMIN in values:
        raise CommandFailedError(f"Only the operator of this server sets {ADMIN}", "NOPERM")
    if folder is None and SPECIAL_USE in values:
        raise CommandFailedError("Special uses belong to folders", "USEATTR")
    values = _stored(values)
    if len(values) > session.limits.imap_annotations_per_folder:
        text = "A command sets more annotations than a folder may have"
        raise session.refusal("imap_annotations_per_folder", text, TOO_MANY)
    try:
        await session.mail.annotate(session.user, folder, values)
    except MailboxFullError as error:
        raise session.refusal_of(error, TOO_MANY) from error
    return Completion("Annotations set")


def too_large(session: Session) -> CommandFailedError:
    """Count a value that is too large, and return the error for the client."""
    limit = session.limits.imap_annotation_bytes
    text = f"The value of an annotation may have {limit} bytes"
    return session.refusal("imap_annotation_bytes", text, f"METADATA MAXSIZE {limit}")


async def _home(session: Session, mailbox: str) -> Folder | None:
    """Return the folder, or None for the account (RFC 5464 section 4.1). Raises FolderNotFoundError."""
    return await session.folder(mailbox) if mailbox else None


def _stored(values: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """Return the values as they are stored. To remove special uses is to set none, so that none are guessed any more.

    RFC 6154 section 4. Raises CommandFailedError.
    """
    if SPECIAL_USE not in values:
        return {**values}
    uses = checked_uses((values[SPECIAL_USE] or b"").decode("latin-1").split())
    return {**values, SPECIAL_USE: uses.encode("ascii")}


def annotations_set_by(command: c.Command | None) -> set[AnnotationEvent]:
    """Return the changes of annotations by a command that has succeeded: they are no news (RFC 5465 section 5)."""
    match command:
        case c.SetMetadata(mailbox, values):
            name, stored = mailbox, _stored(dict(values))
        case c.Create(mailbox, uses) if uses:
            name, stored = mailbox.removesuffix(SEPARATOR), {SPECIAL_USE: checked_uses(uses).encode("ascii")}
        case _:
            return set()
    digests = {entry: None if value is None else value_digest(value) for entry, value in stored.items()}
    return {AnnotationEvent(name, entry, digest) for entry, digest in digests.items()}


def _selected(known: Mapping[str, bytes], entry: str, depth: float) -> Iterator[tuple[str, bytes | None]]:
    """Yield an entry and those below it (RFC 5464 section 4.2.2); if there are none, that the entry is not set."""
    found = [(name, value) for name, value in known.items() if _is_below(name, entry, depth)]
    yield from found
    if not found:
        yield entry, None


def _is_below(name: str, entry: str, depth: float) -> bool:
    """Return True if this is the entry or, down to that depth, below it."""
    return name == entry or (name.startswith(f"{entry}/") and name.count("/") - entry.count("/") <= depth)
