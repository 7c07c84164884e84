"""How references are made and given back, and attachments appear and go. Strategy and proofs: docs/attachments.md.

Three facts carry everything. (1) `holders/` comes with an attachment, by the rename, with a holder inside; once
removed, which works only while it is empty, it never comes back. So an attachment without it is dead for good, whoever
sees that and however long ago. (2) Nothing in an attachment but `holders/` has a name that is ever used again. So what
is dead may be removed by anyone, at any later time, in any order, by the names that were seen: a successor under the
same H-name has others, and its directory, which is not empty, stays. (3) Whoever lists a directory sees at least what
was in it all the while.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence

from replicator.store.attachments import names
from replicator.store.attachments.files import Outcome
from replicator.store.attachments.steps import (
    Algorithm,
    CreateFile,
    ListDirectory,
    MakeDirectory,
    Pause,
    RemoveDirectory,
    RemoveFile,
    Rename,
    SyncDirectory,
)

TRIES = 5
"""Renames before an attachment stays under its S-name. What is in the way is helped away, so few are ever needed."""


def link(place: str, holder: str) -> Algorithm[bool]:
    """Hold what is there, so that a power cut does not take it back. False: there is nothing, or it is dead.

    The directory above is synced too: who renamed the attachment to its name may not have come to that yet.
    """
    if (yield CreateFile(f"{names.holders(place)}/{holder}")) is Outcome.MISSING:
        return False
    if (yield SyncDirectory(names.holders(place))) is Outcome.MISSING:
        return False
    yield SyncDirectory(names.parent(place))
    return True


def begin(place: str, holder: str) -> Algorithm[None]:
    """A new S-named directory with its first holder, ready for content."""
    if (yield MakeDirectory(place)) is Outcome.MISSING:
        yield from make_levels(names.levels(place))
        yield MakeDirectory(place)
    yield MakeDirectory(names.holders(place))
    yield CreateFile(f"{names.holders(place)}/{holder}")


def make_levels(levels: Sequence[str]) -> Algorithm[None]:
    """Directories above a name, which stay for ever; the upper one first."""
    for level in levels:
        yield MakeDirectory(level)


def sync_levels(levels: Sequence[str]) -> Algorithm[None]:
    """Afterwards a power cut leaves them where they are."""
    for level in reversed(levels):
        yield SyncDirectory(names.parent(level))


def sync_built(place: str) -> Algorithm[None]:
    """What was built, but for the content itself: before it is renamed, or else a power cut could leave half of it."""
    yield SyncDirectory(names.holders(place))
    yield SyncDirectory(place)


def publish(built: str, place: str, holder: str) -> Algorithm[bool]:
    """Give what was built, and synced, its H-name, or hold what is there under it. False: kept under its S-name."""
    for attempt in range(TRIES):
        if attempt > 1:
            yield Pause(attempt - 1)
        outcome = yield Rename(built, place)
        if outcome is Outcome.DONE:
            yield SyncDirectory(names.parent(place))
            yield SyncDirectory(names.parent(built))
            return True
        # MISSING, too: NFS says so of a rename that it has done, if the first answer was lost. The holder came with it.
        if (yield from link(place, holder)):
            yield from drop(built)
            return True
        if outcome is Outcome.MISSING:
            raise OSError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}: what was built was removed", built)
        yield from clear(place)
    yield SyncDirectory(names.parent(built))
    yield from sync_levels(names.levels(built))
    return False


def unlink(place: str, holder: str) -> Algorithm[None]:
    """Let go of an attachment; the last holder removes it. May be done again, by whoever is this holder."""
    yield RemoveFile(f"{names.holders(place)}/{holder}")
    yield from remove_unheld(place)


def remove_unheld(place: str) -> Algorithm[None]:
    """Remove an attachment if nobody holds it, or finish that. Anyone may, at any time: fact (1)."""
    if (yield RemoveDirectory(names.holders(place))) is not Outcome.EXISTS:
        yield from clear(place)


def clear(place: str) -> Algorithm[None]:
    """Remove what is dead; nothing happens to what is not.

    Synced first: if power fails in between, `holders/` must not come back with nothing to hold.
    """
    found = yield ListDirectory(place)
    if isinstance(found, Outcome) or names.HOLDERS in found:
        return
    if found:
        yield SyncDirectory(place)
        yield from _remove(place, filter(names.is_ours, sorted(found)))
    yield RemoveDirectory(place)


def drop(place: str) -> Algorithm[None]:
    """Remove an S-named directory of one's own, in whatever state. What a power cut leaves of it, a sweep removes."""
    holders = names.holders(place)
    held = yield ListDirectory(holders)
    if not isinstance(held, Outcome):
        yield from _remove(holders, sorted(held))
        yield RemoveDirectory(holders)
    found = yield ListDirectory(place)
    if not isinstance(found, Outcome):
        yield from _remove(place, filter(names.is_ours, sorted(found)))
        yield RemoveDirectory(place)


def put_in_place(place: str, replacement: str) -> Algorithm[bool]:
    """Rename a synced `new.` file over damaged content, or to where there is none. False: the attachment is gone."""
    found = yield ListDirectory(place)
    new = f"{place}/{names.NEW_PREFIX}{replacement}"
    if isinstance(found, Outcome) or names.HOLDERS not in found:
        yield from clear(place)
        return False
    content = content_in(found) or names.content(replacement)
    if (yield Rename(new, f"{place}/{content}")) is not Outcome.DONE:
        return False
    yield SyncDirectory(place)
    found = yield ListDirectory(place)
    if isinstance(found, Outcome) or names.HOLDERS not in found:
        yield from clear(place)  # who removed it may not have seen what this has put there
        return False
    return True


def content_in(found: Iterable[str]) -> str | None:
    """The name of the content among those in an attachment."""
    return min((name for name in found if name.startswith(names.CONTENT_PREFIX) and names.is_ours(name)), default=None)


def _remove(directory: str, found: Iterable[str]) -> Algorithm[None]:
    for name in found:
        yield RemoveFile(f"{directory}/{name}")
