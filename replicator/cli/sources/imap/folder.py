"""Messages of a folder at an IMAP server: listed some thousand at a time, and fetched in pieces of limited size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from protocol.units import KIB, MIB
from protocol.values import UID_MAX, UidSet
from replicator.cli.sources.imap.connection import ImapConnection
from replicator.cli.sources.imap.values import (
    SenselessAnswerError,
    Value,
    number,
    pairs,
    text,
    time_ms,
    words,
)
from replicator.cli.sources.message import Listing, ReadMessage, SourceError, SourceFolder, SourceMessage, with_crlf
from replicator.mail.dovecot_guids import guid_of
from replicator.mail.mailstore import MESSAGE_BYTES_MAX

LISTED: Final = 2000
"""Messages of one request for flags and dates."""
LISTED_UIDS: Final = 500
"""UIDs that one request names: servers limit the length of a line."""
PIECE_BYTES: Final = MIB
"""Octets of a message in one answer."""
BATCH_MESSAGES, BATCH_BYTES = 64, MIB
"""Messages of one answer, and about how many octets of them."""
REFUSED_MAX: Final = 20
"""Messages of a folder that a server may fail to send before the rest is not tried: for each it may be connected to."""
MESSAGES_MAX: Final = 10_000_000
"""Messages of a folder: more than anybody keeps, and few enough to be listed."""
SIZE_MAX: Final = 2**63 - 1
_ABOUT = "(UID FLAGS INTERNALDATE RFC822.SIZE)"
_LINE_BYTES: Final = 16 * KIB  # of an answer without its literals: flags may be many


class ImapFolder:
    """A folder that is being read; see `FolderReader`. `connection` may become another one, which `connect` makes.

    Raises SourceError if it is another folder than was listed.
    """

    def __init__(self, connection: ImapConnection, folder: SourceFolder, connect: Callable[[], ImapConnection]) -> None:
        self.connection = connection
        self._connect = connect
        self._folder = folder
        self._exists = 0
        self._refused = 0

    def open(self) -> None:
        """Open the folder on this connection. Raises SourceError."""
        told = self.connection.examine(self._folder.at.encode("latin-1"))
        try:
            self._exists = number(told.get("EXISTS"), MESSAGES_MAX)
            uidvalidity = number(told.get("UIDVALIDITY", b"0"), UID_MAX)
        except SenselessAnswerError as error:
            raise self._wrong(f"an answer makes no sense: {error}") from error
        if uidvalidity != (self._folder.uidvalidity or 0):
            raise self._wrong("UIDVALIDITY has changed meanwhile; run the import again")

    def listing(self, since: int | None = None, taken: Collection[int] = ()) -> Listing:
        """See `FolderReader`."""
        if since is not None and self.connection.has("CONDSTORE"):
            uids = self._uids()
            changed = {one.uid: one for one in self._about(self._all(), f"(CHANGEDSINCE {since})")}
            # A server whose MODSEQs begin anew, with a new index for instance, does not tell of all new mail.
            others = sorted({*uids} - {*taken} - changed.keys())
            changed |= {one.uid: one for one in self._about(_chunks(others), by_uid=True)}
            return Listing([changed[uid] for uid in sorted(changed, key=lambda uid: uid or 0)], uids)
        messages = self._about(self._all())
        if len(messages) < self._exists:
            raise self._wrong(f"{self._exists} messages, and {len(messages)} are listed")
        return Listing(messages, UidSet.of(one.uid for one in messages if one.uid is not None))

    def texts(self, messages: Iterable[SourceMessage]) -> Iterator[ReadMessage]:
        """See `FolderReader`."""
        batch, size_bytes = list[SourceMessage](), 0
        for message in messages:
            if batch and (len(batch) == BATCH_MESSAGES or size_bytes + message.size_bytes > BATCH_BYTES):
                yield from self._fetched(batch)
                batch, size_bytes = [], 0
            batch.append(message)
            size_bytes += message.size_bytes
        if batch:
            yield from self._fetched(batch)

    def _about(self, chunks: Iterable[str], condition: str = "", *, by_uid: bool = False) -> Sequence[SourceMessage]:
        """Return the messages that fulfil a condition, in their order."""
        found = list[SourceMessage]()
        for answers in self._listed(chunks, f"{_ABOUT} {condition}".rstrip(), by_uid=by_uid):
            found += sorted(self._messages(answers), key=lambda message: message.uid or 0)
        last = 0
        for message in found:
            if message.uid is None or message.uid <= last:
                raise self._wrong(f"UID {message.uid} after {last}")
            last = message.uid
        return found

    def _uids(self) -> UidSet:
        """Return the UIDs of all messages. SEARCH would tell them in one line, which may be too long."""
        uids = set[int]()
        try:
            for answers in self._listed(self._all(), "(UID)"):
                told = [pairs(answer[-1]) for answer in answers]  # of which some may be of another client's changes
                uids.update(number(one[b"UID"], UID_MAX) for one in told if b"UID" in one)
        except SenselessAnswerError as error:
            raise self._wrong(f"an answer makes no sense: {error}") from error
        if len(uids) < self._exists:
            raise self._wrong(f"{self._exists} messages, and {len(uids)} are listed")
        return UidSet.of(uids)

    def _wrong(self, what: str) -> SourceError:
        return self.connection.wrong(f"{self._folder.name}: {what}")

    def _all(self) -> Iterator[str]:
        """Yield the numbers of all messages, some at a time."""
        for first in range(1, self._exists + 1, LISTED):
            yield f"{first}:{min(first + LISTED - 1, self._exists)}"

    def _listed(self, chunks: Iterable[str], items: str, *, by_uid: bool = False) -> Iterator[list[list[Value]]]:
        """Yield answers about messages, for some of them at a time."""
        for messages in chunks:
            yield self.connection.fetch(messages, items, by_uid=by_uid, most_bytes=LISTED * _LINE_BYTES)

    def _messages(self, answers: Iterable[list[Value]]) -> Iterator[SourceMessage]:
        try:
            for answer in answers:
                told = pairs(answer[-1])
                if not {b"UID", b"FLAGS", b"INTERNALDATE", b"RFC822.SIZE"} <= told.keys():
                    continue  # the server tells of another client's change
                uid = number(told[b"UID"], UID_MAX)
                yield SourceMessage(
                    name=f"{self._folder.name}, UID {uid}",
                    flags=frozenset(words(told[b"FLAGS"])) - {"\\Recent"},
                    received_ms=time_ms(told[b"INTERNALDATE"]),
                    uid=uid,
                    size_bytes=number(told[b"RFC822.SIZE"], SIZE_MAX),
                )
        except SenselessAnswerError as error:
            raise self._wrong(f"an answer makes no sense: {error}") from error

    def _fetched(self, batch: Sequence[SourceMessage]) -> Iterator[ReadMessage]:
        """Yield messages, fetched together or, if the server fails at that, one by one: one may be the cause."""
        begins: dict[int, _Piece] | None
        try:
            begins = self._pieces([message.uid or 0 for message in batch], 0)
        except SourceError:
            self.open_again()
            begins = None
        for message in batch:
            yield self._one(message, begins)

    def _one(self, message: SourceMessage, begins: dict[int, _Piece] | None) -> ReadMessage:
        """Return a message, of which the beginning may be known, or why the server does not send it.

        Raises SourceError if it does not send too many.
        """
        uid = message.uid or 0
        try:
            return self._read(message, (self._pieces([uid], 0) if begins is None else begins).pop(uid, None))
        except SourceError as error:
            self._refused += 1
            if self._refused > REFUSED_MAX:
                raise
            self.open_again()
            return ReadMessage(message, error=str(error))

    def open_again(self) -> None:
        """Connect anew if the server or its answer has ended the connection. Raises SourceError."""
        if self.connection.is_broken:
            self.connection.close()
            self.connection = self._connect()
            self.open()

    def _read(self, message: SourceMessage, begin: _Piece | None) -> ReadMessage:
        if begin is None:
            return ReadMessage(message, error="the server does not send it; has it been expunged there meanwhile?")
        try:
            return ReadMessage(replace(message, guid=begin.guid), with_crlf(self._whole(message, begin.text)))
        except _TooLargeError:
            return ReadMessage(message, error=f"larger than {MESSAGE_BYTES_MAX // MIB} MiB")

    def _whole(self, message: SourceMessage, begin: bytes) -> bytes:
        """Return a message from its first piece. A server's RFC822.SIZE may be wrong: it ends with a short piece."""
        whole, piece = bytearray(begin), begin
        while piece and (len(piece) >= PIECE_BYTES or len(whole) < message.size_bytes):
            if len(whole) > MESSAGE_BYTES_MAX:
                raise _TooLargeError
            piece = self._pieces([message.uid or 0], len(whole)).get(message.uid or 0, _NO_PIECE).text
            whole += piece
        return bytes(whole)

    def _pieces(self, uids: Sequence[int], start: int) -> dict[int, _Piece]:
        """Return a piece of each message, by UIDs."""
        guid = "X-GUID " if self.connection.is_dovecot else ""
        items = f"(UID {guid}BODY.PEEK[]<{start}.{PIECE_BYTES}>)"
        most_bytes = len(uids) * (PIECE_BYTES + _LINE_BYTES)
        answers = self.connection.fetch(str(UidSet.of(uids)), items, by_uid=True, most_bytes=most_bytes)
        pieces = dict[int, _Piece]()
        try:
            for answer in answers:
                told = pairs(answer[-1])
                body = next((value for name, value in told.items() if name.startswith(b"BODY[]")), None)
                if body is not None and b"UID" in told:
                    pieces[number(told[b"UID"], UID_MAX)] = _Piece(text(body), _guid(told.get(b"X-GUID")))
        except SenselessAnswerError as error:
            raise self._wrong(f"an answer makes no sense: {error}") from error
        return pieces


class _Piece(NamedTuple):
    """A piece of a message's text, and the message's GUID if the server tells it."""

    text: bytes
    guid: bytes | None = None


_NO_PIECE = _Piece(b"")


def _guid(told: Value) -> bytes | None:
    return guid_of(told.decode("utf-8", "surrogateescape")) if told and isinstance(told, bytes) else None


def _chunks(uids: Sequence[int]) -> Iterator[str]:
    """Yield sets of UIDs."""
    for first in range(0, len(uids), LISTED_UIDS):
        yield str(UidSet.of(uids[first : first + LISTED_UIDS]))


class _TooLargeError(Exception):
    """A message that is larger than any here."""
