"""Deeds of entries in words, and UIDs as a terminal shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from replicator.cli.output import counted
from resync.story.deeds import Deed, Renumbered, TreeKind
from resync.story.lives import Event

RANGES_SHOWN = 6  # of a set of UIDs
RENUMBERED_SHOWN = 4


def uids(text: str) -> str:
    """Return a sequence set as `3-5, 9`, shortened."""
    ranges = text.replace(":", "-").split(",")
    return ", ".join(ranges[:RANGES_SHOWN]) + (", …" if len(ranges) > RANGES_SHOWN else "")


def deed(done: Deed) -> str:
    """Return what an entry did."""
    names = " ".join(done.names)
    match done.kind:
        case "arrived":
            return f"+{counted(done.messages, 'mail')} UID {uids(done.uids)}"
        case "copied":
            return f"+{counted(done.messages, 'mail')} UID {uids(done.uids)}, copied"
        case "expunged":
            return f"expunged UID {uids(done.uids)}"
        case "flags_set":
            return f"{names} on UID {uids(done.uids)}"
        case "flags_cleared":
            return f"{names} off UID {uids(done.uids)}"
        case "raised":
            return f"UIDNEXT or HIGHESTMODSEQ raised; UIDNEXT {done.uidnext}"
        case "merged":
            return f"merge: {', '.join(_merged(done)) or 'nothing differed'}"
        case kind:
            return _of_tree(kind, done)


def _of_tree(kind: TreeKind, done: Deed) -> str:
    names, folder = " ".join(done.names), done.folder or "?"
    match kind:
        case "folder_created":
            return f"created {folder}"
        case "folder_renamed":
            return f"renamed {done.was or 'a folder'} to {folder}"
        case "folder_deleted":
            return f"deleted {folder}"
        case "subscribed" | "unsubscribed":
            return f"{kind} {folder}"
        case "annotated":
            return f"annotations of {'the account' if done.folder is None else folder}: {names}"
        case "trees_merged":
            folders = ", ".join(done.names) or "none"
            return f"merge: {counted(done.changed, 'difference')}; folders: {folders}"


def deeds(done: Iterable[Deed]) -> str:
    """Return what an entry did in all."""
    return "; ".join(map(deed, done))


def _merged(done: Deed) -> Iterator[str]:
    for one in done.renumbered[:RENUMBERED_SHOWN]:
        yield f"UID {moved(one)}"
    if (more := done.messages - min(len(done.renumbered), RENUMBERED_SHOWN)) > 0:
        yield f"{more} more with other UIDs"
    if done.joined:
        yield f"{counted(done.joined, 'mail')} of one branch"
    if done.changed:
        yield f"{counted(done.changed, 'mail')} whose flags differed"
    if done.differing:
        yield f"{counted(done.differing, 'mail')} that differed"
    if done.removed:
        yield f"{done.removed} expunged on a branch"
    if done.risen:
        yield f"UIDVALIDITY raised (by {done.risen} in all)"


def moved(one: Renumbered) -> str:
    """Return a message's UIDs before and after a merge: `5 -> 21`."""
    return f"{'/'.join(map(str, one.before)) or '?'} -> {one.after}"


def event(one: Event) -> str:
    """Return what happened to a mail."""
    flags = " ".join(one.flags)
    match one.kind:
        case "arrived":
            return f"arrived as UID {one.uid}" + (f" with {flags}" if flags else "")
        case "copied":
            return f"copied here as UID {one.uid}" + (f" with {flags}" if flags else "")
        case "flags_set" | "flags_cleared":
            return f"{flags} {'set' if one.kind == 'flags_set' else 'cleared'}"
        case "expunged":
            return f"expunged, UID {one.uid}"
        case "renumbered":
            return f"merge: UID {'/'.join(map(str, one.was)) or '?'} -> {one.uid}"
        case "merged":
            placed = f", placed {one.placements} times" if one.placements > 1 else ""
            return f"merge: UID {one.uid} stays, now {flags or 'without flags'}{placed}"
        case "removed":
            return "merge: it stays expunged"
