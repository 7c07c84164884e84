"""Writer of what this side sends: items in, bytes out."""

from __future__ import annotations

from replicator.dsync.wire.items import LETTERS, Item, MailChange
from replicator.dsync.wire.keys import KINDS, VERSION
from replicator.dsync.wire.mail_changes import quick_line
from replicator.dsync.wire.streams import END
from replicator.dsync.wire.values import TAB, encode_record

END_OF_LIST = b".\n"
END_OF_TEXT = END


def hello() -> bytes:
    """Return this side's hello: the version, and the names of the values of each kind of record."""
    lines = [VERSION, *(letter + TAB.join(kind.names) for letter, kind in KINDS.items()), "."]
    return "".join(line + "\n" for line in lines).encode()


def line_of(item: Item) -> bytes:
    """Return the line of an item."""
    quick = quick_line(item) if isinstance(item, MailChange) else None
    return quick if quick is not None else general_line(item)


def general_line(item: Item) -> bytes:
    """Return the line of an item of any kind."""
    letter = LETTERS[type(item)]
    values = item.values()
    record = encode_record(values.get(name) for name in KINDS[letter].names)
    return f"{letter}{record}\n".encode(errors="surrogateescape")
