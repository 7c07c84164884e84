"""The sequencer of folder trees: requests about folders, subscriptions and annotations become entries.

Each function runs as one job of the writer, as those of `sequencer` do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from protocol.values import Dot
from replicator.errors import FolderExistsError, FolderNotFoundError, InvalidNameError, MailboxFullError
from replicator.mail.annotations import SPECIAL_USE, USER_TABLE
from replicator.mail.mailstore import INBOX, SEPARATOR, check_folder_name
from replicator.store.db import queries
from replicator.store.db.entry_validation import are_annotations
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.sequencing.numbering import commit, head_of
from resync.entry import (
    ID_BYTES,
    NOWHERE,
    Change,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderSubscribe,
    tree_id,
)
from resync.folder_tree import UIDVALIDITY_MAX, UIDVALIDITY_STEP, uidvalidities_after
from resync.node_annotations import (
    FOREIGN_GUID,
    KEPT_UIDVALIDITY,
    OWN,
    PURGED,
    UIDVALIDITY_HOLDER,
    UNDER_WAY,
    UNFINISHED_SYNC,
    can_rise_to,
    held_by,
    holder_of,
    kept_in,
)
from resync.state import RISEN_MAX

UIDVALIDITY_RESERVE = UIDVALIDITY_STEP << 12
"""UIDVALIDITY values reserved, in each node's share, for merges and for the parents that one new folder may need."""
UIDVALIDITY_OF_CLOCK_MAX = UIDVALIDITY_MAX - (1 << 28)
"""Highest UIDVALIDITY taken from the clock (year 2097), so that a wrong clock cannot use up the values."""
REMOVED_FACTOR = 10
"""Limit of a user's annotations with removed ones, which merges need, as a multiple of the limit without these."""

_GUID = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}")
_SYNC = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}/[0-9a-f]{{32}}")
_UID = re.compile(rb"[0-9]{1,10}")


def _tree(user: str) -> MailboxKey:
    return MailboxKey(user, tree_id(user), 0)


def create_folder(
    tx: Transaction, user: str, name: str, mailbox_id: bytes, *, spare_ids: Iterator[bytes], use: str | None = None
) -> Dot:
    """Create a folder and its missing parents (RFC 3501 section 6.3.3), which get ids from `spare_ids`.

    A retry with the same id does nothing, whatever became of the folder meanwhile; nor does creating an INBOX that
    exists, which two nodes may attempt at once. `use`: the folder's special uses (RFC 6154 section 3). Raises
    FolderExistsError, InvalidNameError, MailboxFullError.
    """
    is_there = _visible(tx, user, name) is not None
    if (name == INBOX and is_there) or _is_deleted(tx, user, mailbox_id) is not None:
        return _head(tx, user)
    if is_there:
        raise FolderExistsError(f"a folder {name!r} already exists")
    uidvalidities = _new_uidvalidities(tx, user)
    missing = _missing_parents(tx, user, name)
    changes: list[Change] = [FolderCreate(next(spare_ids), parent, next(uidvalidities)) for parent in missing]
    changes.append(FolderCreate(mailbox_id, name, next(uidvalidities)))
    _check_number(tx, user, changes)
    if use:
        changes.append(FolderAnnotate(mailbox_id, ((SPECIAL_USE, use.encode()),)))
        _check_annotations(tx, user, 0, 1, 1)
    return commit(tx, _tree(user), changes).dot


def rename_folder(tx: Transaction, user: str, mailbox_id: bytes, name: str, *, spare_ids: Iterator[bytes]) -> Dot:
    """Rename a folder with all folders below it (RFC 3501 section 6.3.5).

    INBOX's mail moves with its mailbox, and a new, empty INBOX takes its place. A deleted folder that is shown for its
    mail is created anew under its new name, and gets the mail: a retry finds it hidden by that one. Raises
    FolderNotFoundError, FolderExistsError, InvalidNameError; MailboxFullError if the user has no room for INBOX's
    annotations twice.
    """
    tx.write_chains()  # the visibility of a deleted folder depends on its mail
    renamed = queries.folder_by_id(tx.connection, user, mailbox_id)
    old = None if renamed is None else renamed.name
    if old is None and not (_visible(tx, user, name) and queries.folder_name(tx.connection, mailbox_id) == name):
        raise FolderNotFoundError("the folder has been deleted in the meantime")
    if old is None or old == name:
        return _head(tx, user)
    if old != INBOX and name.startswith(old + SEPARATOR):
        raise InvalidNameError(f"the folder {old!r} cannot be moved below itself; choose another name")
    # A folder below may be deleted but visible: it moves along, and still vanishes with its last mail. One that was
    # united with another stays so (`resync.folder_tree.renamed`).
    below = {} if old == INBOX else queries.folders_below(tx.connection, user, old)
    names = {mailbox_id: name, **{record.mailbox_id: name + n.removeprefix(old) for n, record in below.items()}}
    for new in names.values():
        check_folder_name(new)
        holder = queries.folder(tx.connection, user, new)
        if holder is not None and holder.mailbox_id not in names:
            raise FolderExistsError(f"a folder {new!r} already exists")
    uidvalidities = _new_uidvalidities(tx, user)
    missing = _missing_parents(tx, user, name)
    changes: list[Change] = [FolderCreate(next(spare_ids), parent, next(uidvalidities)) for parent in missing]
    changes += [FolderRename(folder_id, new) for folder_id, new in names.items()]
    if _is_deleted(tx, user, mailbox_id):
        changes.append(FolderCreate(next(spare_ids), name, next(uidvalidities)))
    if old == INBOX:
        changes.append(inbox := FolderCreate(next(spare_ids), INBOX, next(uidvalidities)))
        kept = queries.annotations_of(tx.connection, user, mailbox_id)  # RFC 5464 section 4.1: both have them
        _check_annotations(tx, user, 0, len(kept), len(kept))
        changes += [FolderAnnotate(inbox.mailbox_id, (one,)) for one in kept.items()]
    _check_number(tx, user, changes)
    return commit(tx, _tree(user), changes).dot


def delete_folder(tx: Transaction, user: str, mailbox_id: bytes) -> Dot:
    """Delete a folder from the tree; if it is deleted already, change nothing. Raises FolderNotFoundError."""
    deleted = _is_deleted(tx, user, mailbox_id)
    if deleted is None:
        raise FolderNotFoundError("the user has no such folder")
    if deleted:
        return _head(tx, user)
    return commit(tx, _tree(user), [FolderDelete(mailbox_id)]).dot


def subscribe(tx: Transaction, user: str, name: str, *, subscribed: bool) -> Dot | None:
    """Set or clear a subscription. Return the entry, or the head if nothing changes. Raises MailboxFullError."""
    known = queries.subscriptions(tx.connection, user)
    if (name in known) == subscribed:
        return head_of(tx, _tree(user))
    if subscribed and len(known) >= tx.limits.imap_folders_per_user:
        raise MailboxFullError(f"a user may have {tx.limits.imap_folders_per_user} subscriptions; remove some first")
    return commit(tx, _tree(user), [FolderSubscribe(name, subscribed)]).dot


def annotate(tx: Transaction, user: str, mailbox_id: bytes, values: Iterable[tuple[str, bytes | None]]) -> Dot | None:
    """Set or, by None, remove annotations of a folder or, with `NOWHERE`, of the account, all or none (RFC 5464).

    Return the entry, or the head if nothing changes. Raises FolderNotFoundError, MailboxFullError; InvalidNameError for
    a change that other nodes would refuse.
    """
    wanted = tuple(values)
    if not are_annotations(wanted):
        raise InvalidNameError("so many annotations, or such names and values, are too much for one change")
    if mailbox_id != NOWHERE and _is_deleted(tx, user, mailbox_id) is not False:
        raise FolderNotFoundError("the user has no such folder")
    if any(name.startswith(OWN) for name, _ in wanted):
        return _annotate_own(tx, user, mailbox_id, wanted)
    had = queries.had_annotations(tx.connection, user, mailbox_id, [name for name, _ in wanted])
    changed = tuple((name, value) for name, value in wanted if had.get(name) != value)
    if not changed:
        return head_of(tx, _tree(user))
    if user != USER_TABLE:
        more = sum((value is not None) - (had.get(name) is not None) for name, value in changed)
        fresh = sum(name not in had for name, _ in changed)
        _check_annotations(tx, user, queries.count_annotations(tx.connection, user, mailbox_id), more, fresh)
    return commit(tx, _tree(user), [FolderAnnotate(mailbox_id, changed)]).dot


def _annotate_own(
    tx: Transaction, user: str, mailbox_id: bytes, wanted: Sequence[tuple[str, bytes | None]]
) -> Dot | None:
    """Set an annotation that nodes alone set. Raises as the kinds do, and MailboxFullError."""
    (name, value), *others = wanted
    of_account = name == PURGED or name.startswith((FOREIGN_GUID, UNFINISHED_SYNC))
    if others or (name != KEPT_UIDVALIDITY if mailbox_id != NOWHERE else not of_account):
        raise InvalidNameError(f"annotations below {OWN} belong to the nodes")
    if name == PURGED:
        return _note_purge(tx, user, value)
    known = queries.count_annotations_below(tx.connection, user, NOWHERE, OWN)
    if known >= REMOVED_FACTOR * tx.limits.imap_folders_per_user:
        raise MailboxFullError("the user's folders have had too many names at other servers")
    if name.startswith(UNFINISHED_SYNC):
        return _note_unfinished(tx, user, name, value)
    if mailbox_id == NOWHERE:
        return _know_as(tx, user, name, value)
    return _keep_uidvalidity(tx, user, mailbox_id, value)


def _note_purge(tx: Transaction, user: str, value: bytes | None) -> Dot | None:
    """Note that all that a former user has is about to be removed, or has been. Raises InvalidNameError.

    This always makes an entry: what was removed before its stamp, the purge has removed.
    """
    if value is None or (value != UNDER_WAY and not _UID.fullmatch(value)):
        raise InvalidNameError(f"a purge is noted by {UNDER_WAY.decode()!r}, and by a UIDNEXT once it is over")
    return commit(tx, _tree(user), [FolderAnnotate(NOWHERE, ((PURGED, value),))]).dot


def _note_unfinished(tx: Transaction, user: str, name: str, value: bytes | None) -> Dot | None:
    """Note the last common UID of a sync that has begun, or with None that it has ended. Raises InvalidNameError."""
    if not _SYNC.fullmatch(name.removeprefix(UNFINISHED_SYNC)) or (value is not None and not _UID.fullmatch(value)):
        raise InvalidNameError("a sync that has begun is noted by a folder's id, the hash of a name, and a UID")
    if queries.had_annotations(tx.connection, user, NOWHERE, [name]).get(name) == value:
        return head_of(tx, _tree(user))
    return commit(tx, _tree(user), [FolderAnnotate(NOWHERE, ((name, value),))]).dot


def _know_as(tx: Transaction, user: str, name: str, value: bytes | None) -> Dot | None:
    """Let Dovecots know a folder by a GUID. Raises FolderNotFoundError, InvalidNameError."""
    guid = name.removeprefix(FOREIGN_GUID)
    holder = holder_of(value or b"")
    if not _GUID.fullmatch(guid) or holder is None or holder.hex().encode() != value:
        raise InvalidNameError(f"a GUID has {2 * ID_BYTES} hexadecimal digits, and stands for a folder by its id")
    if not _is_shown(tx, user, holder):
        raise FolderNotFoundError("the user has no such folder")
    if queries.had_annotations(tx.connection, user, NOWHERE, [name]).get(name) == value:
        return head_of(tx, _tree(user))
    return commit(tx, _tree(user), [FolderAnnotate(NOWHERE, ((name, value),))]).dot


def _keep_uidvalidity(tx: Transaction, user: str, mailbox_id: bytes, value: bytes | None) -> Dot | None:
    """Give a folder the UIDVALIDITY that its mailbox has at another server, or with None its own (design section 3).

    Raises FolderExistsError if another folder has it, or could come to have it, or if the folder has had mail:
    clients know that by its own UIDVALIDITY. Raises InvalidNameError for what is no UIDVALIDITY.
    """
    had = queries.had_annotations(tx.connection, user, mailbox_id, [KEPT_UIDVALIDITY]).get(KEPT_UIDVALIDITY)
    changes = [FolderAnnotate(mailbox_id, ((KEPT_UIDVALIDITY, value),))]
    if value is None and had is None:
        return head_of(tx, _tree(user))
    if value is not None:
        shown = queries.uidvalidities(tx.connection, mailbox_id)
        if had == value and shown is not None and b"%d" % shown[0] == value:
            return head_of(tx, _tree(user))
        query = "SELECT uidvalidity FROM folder WHERE mailbox_id = ?"
        (own,) = tx.connection.execute(query, (mailbox_id,)).fetchone()
        holder = held_by(mailbox_id, own)
        _check_uidvalidity(tx, user, mailbox_id, value)
        mailbox = tx.chain(mailbox_id)
        if mailbox is not None and mailbox.uidnext > 1:
            raise FolderExistsError(
                "the folder has had mail, or its UIDNEXT was raised, and clients know it by its own UIDVALIDITY;"
                " use a new folder"
            )
        changes.append(FolderAnnotate(NOWHERE, ((UIDVALIDITY_HOLDER + value.decode(), holder),)))
    return commit(tx, _tree(user), changes).dot


def _check_uidvalidity(tx: Transaction, user: str, mailbox_id: bytes, value: bytes) -> None:
    """Raise InvalidNameError or FolderExistsError if no folder, or this one, may have this UIDVALIDITY."""
    text = value.decode("latin-1")
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(UIDVALIDITY_MAX))
    wanted = int(text) if is_number else 0
    if not 0 < wanted <= UIDVALIDITY_MAX or text != str(wanted):
        raise InvalidNameError(f"a UIDVALIDITY is a number from 1 to {UIDVALIDITY_MAX}, not {text[:24]!r}")
    name = UIDVALIDITY_HOLDER + text
    holder = queries.had_annotations(tx.connection, user, NOWHERE, [name]).get(name)
    is_held = holder is not None and holder_of(holder) != mailbox_id
    lowest, itself = wanted - RISEN_MAX, (mailbox_id, wanted)
    if is_held or queries.has_uidvalidity_within(tx.connection, user, lowest, wanted, ignoring=itself):
        raise FolderExistsError(f"a folder of the user has, has had, or may come to have the UIDVALIDITY {wanted}")


def _check_annotations(tx: Transaction, user: str, known: int, more: int, fresh: int) -> None:
    """Check the limits where a folder, or the account, that has `known` annotations gets more.

    `fresh`: those that it never had. Raises MailboxFullError.
    """
    limits = tx.limits
    if more > 0 and known + more > limits.imap_annotations_per_folder:
        raise MailboxFullError(
            f"a folder may have {limits.imap_annotations_per_folder} annotations, and so may the account; remove some"
            " first"
        )
    query = (
        "SELECT COUNT(*), COUNT(*) FILTER (WHERE value IS NOT NULL AND NOT COALESCE(f.deleted, 0))"
        " FROM annotation a LEFT JOIN folder f USING (mailbox_id)"  # a united folder's do not count
        f" WHERE a.user = ? AND substr(a.name, 1, {len(OWN)}) <> '{OWN}'"
    )
    rows, living = tx.connection.execute(query, (user,)).fetchone() if more > 0 or fresh else (0, 0)
    if more > 0 and living + more > limits.imap_annotations_per_user:
        raise MailboxFullError(f"a user may have {limits.imap_annotations_per_user} annotations; remove some first")
    if fresh and rows + fresh > REMOVED_FACTOR * limits.imap_annotations_per_user:
        raise MailboxFullError("this user has had too many annotations under different names; use those names again")


def _head(tx: Transaction, user: str) -> Dot:
    chain = tx.chain(tree_id(user))
    assert chain is not None
    assert chain.head is not None
    return chain.head


def _is_deleted(tx: Transaction, user: str, mailbox_id: bytes) -> bool | None:
    """Return True if the folder is deleted, or None if it never existed."""
    query = "SELECT deleted FROM folder WHERE mailbox_id = ? AND user = ?"
    row = tx.connection.execute(query, (mailbox_id, user)).fetchone()
    return None if row is None else bool(row[0])


def _is_shown(tx: Transaction, user: str, mailbox_id: bytes) -> bool:
    """Return True if clients see the folder: if it is not deleted, or has got mail elsewhere meanwhile."""
    deleted, mailbox = _is_deleted(tx, user, mailbox_id), tx.chain(mailbox_id)
    return deleted is False or (deleted is True and mailbox is not None and mailbox.messages > 0)


def _visible(tx: Transaction, user: str, name: str) -> queries.FolderRecord | None:
    tx.write_chains()  # the visibility of a deleted folder depends on its mail
    return queries.folder(tx.connection, user, name)


def _parents(name: str) -> list[str]:
    parts = name.split(SEPARATOR)
    return [SEPARATOR.join(parts[:length]) for length in range(1, len(parts))]


def _missing_parents(tx: Transaction, user: str, name: str) -> list[str]:
    """Return which parents to create: one that is deleted, and shown for its mail, is created anew and gets that."""
    known = ((one, queries.folder(tx.connection, user, one)) for one in _parents(name))
    return [one for one, found in known if found is None or _is_deleted(tx, user, found.mailbox_id)]


def _check_number(tx: Transaction, user: str, changes: Sequence[Change]) -> None:
    """Check the limit on the number of folders. Raises MailboxFullError."""
    more = sum(isinstance(change, FolderCreate) for change in changes)
    if not queries.has_room_for_folders(tx.connection, user, more, tx.limits.imap_folders_per_user):
        raise MailboxFullError(f"a user may have {tx.limits.imap_folders_per_user} folders; delete some first")


def _new_uidvalidities(tx: Transaction, user: str) -> Iterator[int]:
    """Yield UIDVALIDITYs from the clock's seconds (RFC 3501 section 2.3.1.1) up, above all that the user's folders had.

    They are unique to the user, not only to the name: a folder renamed to a former name must not look like the former
    folder. They are of this node's share, so that no other side of a cut gives the same one. Raises MailboxFullError
    when they have run out.
    """
    highest = queries.highest_uidvalidity(tx.connection, user) or -UIDVALIDITY_STEP
    if highest + UIDVALIDITY_RESERVE * tx.share.of > UIDVALIDITY_MAX:
        raise MailboxFullError("the user has had so many folders that no UIDVALIDITY is left for a new one")
    now_s = min(tx.wall_ms() // 1000, UIDVALIDITY_OF_CLOCK_MAX)
    can_rise_to_kept = partial(_can_rise_to_kept, tx, user)
    return uidvalidities_after(max(now_s - UIDVALIDITY_STEP, highest), can_rise_to_kept, tx.share)


def _can_rise_to_kept(tx: Transaction, user: str, own: int) -> bool:
    """Return True if a folder's own UIDVALIDITY, with what merges may add, can become one of another server."""
    first, last = str(own), str(own + RISEN_MAX)
    if len(first) < len(last):  # the order of names is not that of numbers
        first, last = "0", ":"
    bounds = (UIDVALIDITY_HOLDER + first, UIDVALIDITY_HOLDER + last)
    return can_rise_to(own, kept_in(queries.annotation_names(tx.connection, user, NOWHERE, *bounds)))
