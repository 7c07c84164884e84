r"""Special uses of folders (RFC 6154): those that clients have set, and guesses from names. Pure functions.

A folder's special uses are its annotation `/private/specialuse`. Where no folder has a use, a folder with a name that
mail programs give to such folders is shown with it, unless the folder has the annotation already, even an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from replicator.imap.wire.refusals import CommandFailedError

_NAMES: Mapping[str, tuple[str, ...]] = {
    "\\Archive": ("archive", "archives"),
    "\\Drafts": ("drafts", "draft", "[gmail]/drafts", "[google mail]/drafts"),
    "\\Junk": (
        "junk", "spam", "junk e-mail", "junk email", "junk mail", "bulk mail", "[gmail]/spam", "[google mail]/spam",
    ),
    "\\Sent": (
        "sent", "sent messages", "sent items", "sent mail", "[gmail]/sent mail", "[google mail]/sent mail",
    ),
    "\\Trash": (
        "trash", "deleted messages", "deleted items", "bin", "[gmail]/trash", "[gmail]/bin", "[google mail]/trash",
        "[google mail]/bin",
    ),
}  # fmt: skip
"""The supported uses (`SPECIAL_USES`) with names that clients give such folders; the first existing name wins."""
_USES = {use.lower(): use for use in _NAMES}
_LONGEST = max(len(name) for names in _NAMES.values() for name in names)


def special_uses(names: Iterable[str], assigned: Mapping[str, str]) -> dict[str, str]:
    """Return the folders that have special uses, separated by spaces. `assigned`: what the annotation says, by name."""
    found = {name: uses for name, uses in assigned.items() if uses}
    taken = {use for uses in found.values() for use in uses.split(" ")}
    short = (name for name in names if len(name) <= _LONGEST and name not in assigned)
    by_lower = {name.lower(): name for name in sorted(short, reverse=True)}
    for use, conventional in _NAMES.items():
        name = next((by_lower[lower] for lower in conventional if lower in by_lower), None)
        if name is not None and use not in taken:
            found[name] = use
    return found


def uses_of(value: bytes) -> str:
    """Return those of the special uses in an annotation's value that are supported: another node has checked it."""
    return " ".join(use for use in value.decode("latin-1").split(" ") if use in _NAMES)


def checked_uses(uses: Iterable[str]) -> str:
    """Return special uses as LIST shows them, each once. Raises CommandFailedError if one is not supported."""
    found: dict[str, None] = {}
    for use in uses:
        if use.lower() not in _USES:
            supported = ", ".join(_NAMES)
            raise CommandFailedError(f"The special use {use} is not supported; {supported} are", "USEATTR")
        found[_USES[use.lower()]] = None
    return " ".join(found)
