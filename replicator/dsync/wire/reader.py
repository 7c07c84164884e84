"""Reader of what a peer sends, without I/O: bytes in; items, ends of lists and pieces of texts out.

Feed it with `receive`, then call `next` until it returns None; `more` returns many items at once. The peer's hello
comes first, and says how its records are read.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeVar

from replicator.dsync.errors import DsyncError, PeerGoneError
from replicator.dsync.wire.fields import Fields
from replicator.dsync.wire.items import LETTERS, TYPES, Attribute, Item, Mail
from replicator.dsync.wire.keys import CLOSING, KINDS, MAJOR
from replicator.dsync.wire.mail_changes import LETTER, QuickReader
from replicator.dsync.wire.streams import StreamDecoder
from replicator.dsync.wire.values import TAB, decode_record

LINE_BYTES_MAX = 64 << 10
"""Longest line but for those of `LONG_LINES_MAX`: a folder's name and a mail's keywords have far less."""

LONG_LINES_MAX = {ord("D"): 4 << 20, ord("A"): 256 << 10}
"""Longest lines of deletions, with 44 bytes for each folder that a user has ever deleted, and of annotations."""

AT_ONCE = 64
SHORT_BYTES = 4 << 10
"""Items that are read at once, and octets of their lines: a millisecond, whatever they are. Longer lines are apart."""

RECORD_BYTES = 600
PART_BYTES = 150
"""The most memory of a record, and of each part of its lists, beyond what the line has. Most records take half."""

SEPARATORS = b"\1t"
"""The separator of the parts of a list within a value."""

HELLO_LINES_MAX = 100
"""Lines of a hello: eleven kinds are known."""


class Mark(Enum):
    """A mark between items."""

    END_OF_LIST = auto()
    END_OF_TEXT = auto()


Event = Item | Mark | bytes
"""An item, a mark, or a piece of a text."""

T = TypeVar("T", bound=Item)


class Reader:
    """The receiving side of one conversation."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer that have no LF
        self._names: dict[str, list[str]] | None = None  # by letter, as the peer has announced them
        self._changes: QuickReader | None = None  # after the hello
        self._hello: list[str] = []
        self._text: StreamDecoder | None = None
        self.weight = 0  # bytes of memory that the last items take at most

    @property
    def is_behind_long_line(self) -> bool:
        """True if the next line takes longer to read than others may wait."""
        is_long = len(self._buffer) > SHORT_BYTES and self._buffer.find(b"\n", 0, SHORT_BYTES) < 0
        return is_long and self._text is None

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer."""
        self._buffer += data

    def next(self) -> Event | None:
        """Return what comes next; None if it is not here yet. Raises DsyncError, PeerGoneError."""
        if self._text is not None:
            return self._next_piece(self._text)
        while (line := self._next_line()) is not None:
            self.weight = _weight(1, line)
            event = self._event_of(line.decode(errors="surrogateescape"))
            if event is not None:
                return event
        return None

    def more(self, kind: type[T]) -> list[T]:
        """Return some items of this kind that come next, as far as they are here. Raises DsyncError.

        `kind`: one whose items have no texts. This is quicker than `next`, which returns what follows them.
        """
        found, size_bytes = list[T](), 0
        letter = LETTERS[kind].encode()
        end = self._buffer.rfind(b"\n", 0, SHORT_BYTES) + 1
        for line in self._buffer[:end].split(b"\n", AT_ONCE)[:AT_ONCE]:
            if not line.startswith(letter):
                break
            item = self._event_of(line.decode(errors="surrogateescape"))
            if isinstance(item, kind):
                found.append(item)
            size_bytes += len(line) + 1
        self.weight = _weight(len(found), self._buffer[:size_bytes])
        del self._buffer[:size_bytes]
        self._searched = 0
        return found

    def _next_piece(self, text: StreamDecoder) -> Event | None:
        if text.rest is None:
            piece = text.receive(bytes(self._buffer))
            self._buffer.clear()
            if piece:
                return piece
        if text.rest is None:
            return None
        self._buffer[:0] = text.rest
        self._text = None
        self._searched = 0
        return Mark.END_OF_TEXT

    def _next_line(self) -> bytearray | None:
        end = self._buffer.find(b"\n", self._searched)
        longest = LINE_BYTES_MAX if not self._buffer else LONG_LINES_MAX.get(self._buffer[0], LINE_BYTES_MAX)
        if end > longest or (end < 0 and len(self._buffer) > longest):
            raise DsyncError(f"the peer sent a line of more than {longest} bytes")
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line = self._buffer[:end]
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def _event_of(self, line: str) -> Event | None:
        if self._names is None:
            self._greet(line)
            return None
        if line == ".":
            return Mark.END_OF_LIST
        if line == CLOSING:
            raise PeerGoneError("the peer has given up")
        letter = line[:1]
        quick = self._changes.read(line[1:]) if letter == LETTER and self._changes is not None else None
        if quick is not None:
            return quick
        kind = TYPES.get(letter)
        if kind is None:
            return None  # of a later version: the peer knows from our hello that we do not read it
        if letter not in self._names:
            raise DsyncError(f"the peer sent a record {letter} that it had not announced")
        names, values = self._names[letter], decode_record(line[1:])
        if len(values) > len(names):
            raise DsyncError(f"the peer sent a record {letter} with more values than it had announced")
        item: Item = kind.of(Fields(letter, dict(zip(names, values, strict=False))))
        if isinstance(item, Mail | Attribute) and item.streams:
            self._text = StreamDecoder()
        return item

    def _greet(self, line: str) -> None:
        """Take a line of the peer's hello: version, names of each kind of record, and a dot."""
        if not self._hello:
            words = line.split(TAB)
            if len(words) < 4 or words[:3] != ["VERSION", "dsync", str(MAJOR)]:
                raise DsyncError(f"the peer speaks {line[:80]!r}, not dsync in version {MAJOR}")
        elif line == ".":
            self._names = _announced(self._hello[1:])
            self._changes = QuickReader(self._names[LETTER])
            return
        self._hello.append(line)
        if len(self._hello) > HELLO_LINES_MAX:
            raise DsyncError("the peer's hello does not end")


def _weight(items: int, lines: bytearray) -> int:
    return RECORD_BYTES * items + len(lines) + PART_BYTES * lines.count(SEPARATORS)


def _announced(lines: list[str]) -> dict[str, list[str]]:
    """Return the names of each kind of record, by letter. Raises DsyncError if one is missing."""
    announced = {line[:1]: line[1:].split(TAB) for line in lines if line}
    for letter in TYPES:
        missing = [name for name in KINDS[letter].required if name not in announced.get(letter, ())]
        if letter not in announced or missing:
            raise DsyncError(f"the peer's hello lacks {', '.join(missing) or 'all'} of records {letter}")
    return announced
