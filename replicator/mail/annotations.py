"""Names and sizes of annotations (RFC 5464), for all who take them in: from clients, from nodes and from objects."""

from __future__ import annotations

import re

from protocol.units import KIB, MIB
from replicator.errors import InvalidNameError
from replicator.users.names import check_user_name

SPECIAL_USE = "/private/specialuse"
"""The annotation that holds a folder's special uses, separated by spaces (RFC 6154 section 4)."""
SPECIAL_USES = ("\\Archive", "\\Drafts", "\\Junk", "\\Sent", "\\Trash")
r"""The special uses (RFC 6154) that a folder can have: none presents the mail of others, as \All and \Flagged do."""
USER_TABLE = ":users"
"""The account whose annotations are the users of the cluster (`replicator.user_table`); no user's name has a colon.

The limits of what clients may store do not apply to it.
"""
VALUE_BYTES_MAX = 64 * KIB
"""Octets of a value, whatever a node's configuration allows."""
NAME_MAX = 256
AT_ONCE_MAX = 1000
"""Annotations that one change sets or removes."""
BYTES_AT_ONCE_MAX = 2 * MIB
"""Octets of their values and names together: an IMAP command has at most 1 MiB of literals, and 64 KiB of text."""

_NAME = re.compile(r"/(?:private|shared)(?:/[!-$&-)+-.0-~]+)+")
"""RFC 5464 section 3.2: levels without `*` and `%`, here of printable ASCII; names are the same in upper case."""
_VENDOR_LEVELS = 5  # "", scope, "vendor", token, name


def check_owner_name(user: str) -> None:
    """Raise ValueError if this is neither a user's name nor the account of the user table."""
    if user != USER_TABLE:
        check_user_name(user)


def check_annotation_name(name: str) -> None:
    """Raise InvalidNameError for a name that no annotation can have. Names are in lower case here."""
    if len(name) > NAME_MAX or name != name.lower() or not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"an annotation's name begins with /private/ or /shared/, has no empty levels, and at most {NAME_MAX}"
            " characters, which are printable ASCII without spaces, * and %"
        )
    levels = name.split("/")
    if levels[2] == "vendor" and len(levels) < _VENDOR_LEVELS:
        raise InvalidNameError("below /vendor/, an annotation's name has the vendor's name and another level")


def is_annotation(name: str, value: bytes | None) -> bool:
    """Return True if an annotation can have this name and value."""
    try:
        check_annotation_name(name)
    except InvalidNameError:
        return False
    return value is None or len(value) <= VALUE_BYTES_MAX
