"""The algorithms that make and release references, and publish and remove attachments. Proofs: docs/attachments.md.

They rest on three facts. (1) `holders/` comes with an attachment, by the rename, with a holder inside; once removed,
which works only while it is empty, it never comes back. So an attachment without `holders/` is dead for good, no matter
which process sees that, and when. (2) Except for `holders/`, no name in an attachment is ever reused. So any process
may remove a dead attachment, at any later time, in any order, by the names that it saw: a successor under the same
H-name has other names, and its directory stays, as it is not empty. (3) A directory listing shows at least the names
present throughout.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence

from replicator.store.attachments import names
from replicator.store.attachments.files import StepOutcome
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
"""Number of renames tried before an attachment stays under its S-name.

Obstacles are cleared between tries, so few are ever needed.
"""


def link(place: str, holder: str) -> Algorithm[bool]:
    """Link an attachment durably. Return False if there is none, or it is dead.

    The directory above is synced too: the process that renamed the attachment may not have done so yet.
    """
    if (yield CreateFile(f"{names.holders(place)}/{holder}")) is StepOutcome.MISSING:
        return False
    if (yield SyncDirectory(names.holders(place))) is StepOutcome.MISSING:
        return False
    yield SyncDirectory(names.parent(place))
    return True


def begin(place: str, holder: str) -> Algorithm[None]:
    """Make a new S-named directory with its first holder, ready for content."""
    if (yield MakeDirectory(place)) is StepOutcome.MISSING:
        yield from make_levels(names.levels(place))
        yield MakeDirectory(place)
    yield MakeDirectory(names.holders(place))
    yield CreateFile(f"{names.holders(place)}/{holder}")


def make_levels(levels: Sequence[str]) -> Algorithm[None]:
    """Make the directories above a name, the upper one first; they are never removed."""
    for level in levels:
        yield MakeDirectory(level)


def sync_levels(levels: Sequence[str]) -> Algorithm[None]:
    """Sync the directories above a name, so that they survive a power cut."""
    for level in reversed(levels):
        yield SyncDirectory(names.parent(level))


def sync_built(place: str) -> Algorithm[None]:
    """Sync everything built except the content, before the rename: a power cut could otherwise leave only a part."""
    yield SyncDirectory(names.holders(place))
    yield SyncDirectory(place)


def publish(built: str, place: str, holder: str) -> Algorithm[bool]:
    """Rename a built and synced attachment to its H-name, or link the one there. False: it is kept under its S-name."""
    for attempt in range(TRIES):
        if attempt > 1:
            yield Pause(attempt - 1)
        outcome = yield Rename(built, place)
        if outcome is StepOutcome.DONE:
            yield SyncDirectory(names.parent(place))
            yield SyncDirectory(names.parent(built))
            return True
        # After MISSING too: NFS reports that of a completed rename whose first reply was lost. The holder came with it.
        if (yield from link(place, holder)):
            yield from drop(built)
            return True
        if outcome is StepOutcome.MISSING:
            raise OSError(
                errno.ENOENT,
                f"{os.strerror(errno.ENOENT)}: the new attachment was removed before it was in its place",
                built,
            )
        yield from clear(place)
    yield SyncDirectory(names.parent(built))
    yield from sync_levels(names.levels(built))
    return False


def unlink(place: str, holder: str) -> Algorithm[None]:
    """Release a holder; the last one removes the attachment. The same holder may be released again."""
    yield RemoveFile(f"{names.holders(place)}/{holder}")
    yield from remove_unheld(place)


def remove_unheld(place: str) -> Algorithm[None]:
    """Remove an attachment without holders, or finish its removal. Any process may, at any time: fact (1)."""
    if (yield RemoveDirectory(names.holders(place))) is not StepOutcome.EXISTS:
        yield from clear(place)


def clear(place: str) -> Algorithm[None]:
    """Remove a dead attachment; leave a live one untouched.

    Synced first: after a power cut in between, `holders/` must not come back without content.
    """
    found = yield ListDirectory(place)
    if isinstance(found, StepOutcome) or names.HOLDERS in found:
        return
    if found:
        yield SyncDirectory(place)
        yield from _remove(place, filter(names.is_ours, sorted(found)))
    yield RemoveDirectory(place)


def drop(place: str) -> Algorithm[None]:
    """Remove an own S-named directory in any state. After a power cut, a sweep removes the rest."""
    holders = names.holders(place)
    held = yield ListDirectory(holders)
    if not isinstance(held, StepOutcome):
        yield from _remove(holders, sorted(held))
        yield RemoveDirectory(holders)
    found = yield ListDirectory(place)
    if not isinstance(found, StepOutcome):
        yield from _remove(place, filter(names.is_ours, sorted(found)))
        yield RemoveDirectory(place)


def put_in_place(place: str, replacement: str) -> Algorithm[bool]:
    """Rename a synced `new.` file over damaged content, or to where none is. False: the attachment is gone."""
    found = yield ListDirectory(place)
    new = f"{place}/{names.NEW_PREFIX}{replacement}"
    if isinstance(found, StepOutcome) or names.HOLDERS not in found:
        yield from clear(place)
        return False
    content = content_in(found) or names.content(replacement)
    if (yield Rename(new, f"{place}/{content}")) is not StepOutcome.DONE:
        return False
    yield SyncDirectory(place)
    found = yield ListDirectory(place)
    if isinstance(found, StepOutcome) or names.HOLDERS not in found:
        yield from clear(place)  # the process that removed it may not have seen the new content
        return False
    return True


def content_in(found: Iterable[str]) -> str | None:
    """Return the name of the content among the names in an attachment."""
    return min((name for name in found if name.startswith(names.CONTENT_PREFIX) and names.is_ours(name)), default=None)


def _remove(directory: str, found: Iterable[str]) -> Algorithm[None]:
    for name in found:
        yield RemoveFile(f"{directory}/{name}")
