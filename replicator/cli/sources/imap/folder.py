"""Messages of a folder at an IMAP server: listed some thousand at a time, and fetched in pieces of limited size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

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
from replicator.cli.sources.message import Listing, ReadMessage, SourceFolder, SourceMessage, with_crlf
from replicator.mail.mailstore import MESSAGE_BYTES_MAX

LISTED: Final = 2000
"""Messages of one request for flags and dates."""
PIECE_BYTES: Final = MIB
"""Octets of a message in one answer."""
BATCH_MESSAGES, BATCH_BYTES = 64, MIB
"""Messages of one answer, and about how many octets of them."""
MESSAGES_MAX: Final = 10_000_000
SIZE_MAX: Final = 2**63 - 1
_ABOUT = "(UID FLAGS INTERNALDATE RFC822.SIZE)"
_LINE_BYTES: Final = 16 * KIB  # of an answer without its literals: flags may be many


class ImapFolder:
    """A folder that is being read; see `FolderReader`. Raises SourceError if it is another one than was listed."""

    def __init__(self, connection: ImapConnection, folder: SourceFolder) -> None:
        self._connection = connection
        self._folder = folder
        told = connection.examine(folder.at.encode("latin-1"))
        try:
            self._exists = number(told.get("EXISTS"), MESSAGES_MAX)
            uidvalidity = number(told.get("UIDVALIDITY", b"0"), UID_MAX)
        except SenselessAnswerError as error:
            raise connection.wrong(f"{folder.name}: an answer makes no sense: {error}") from error
        if uidvalidity != (folder.uidvalidity or 0):
            raise connection.wrong(f"{folder.name}: UIDVALIDITY has changed meanwhile; run the import again")

    def listing(self, since: int | None) -> Listing:
        """See `FolderReader`."""
        if since is not None and self._connection.has("CONDSTORE"):
            return Listing(self._about(f"(CHANGEDSINCE {since})"), self._uids())
        messages = self._about("")
        if len(messages) < self._exists:
            raise self._connection.wrong(
                f"{self._folder.name}: {self._exists} messages, and {len(messages)} are listed"
            )
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

    def _about(self, condition: str) -> Sequence[SourceMessage]:
        """Return the messages that fulfil a condition, in their order."""
        found = list[SourceMessage]()
        for answers in self._listed(f"{_ABOUT} {condition}".rstrip()):
            found += sorted(self._messages(answers), key=lambda message: message.uid or 0)
        last = 0
        for message in found:
            if message.uid is None or message.uid <= last:
                raise self._connection.wrong(f"{self._folder.name}: UID {message.uid} after {last}")
            last = message.uid
        return found

    def _uids(self) -> UidSet:
        """Return the UIDs of all messages. SEARCH would tell them in one line, which may be too long."""
        uids = set[int]()
        try:
            for answers in self._listed("(UID)"):
                told = [pairs(answer[-1]) for answer in answers]  # of which some may be of another client's changes
                uids.update(number(one[b"UID"], UID_MAX) for one in told if b"UID" in one)
        except SenselessAnswerError as error:
            raise self._connection.wrong(f"{self._folder.name}: an answer makes no sense: {error}") from error
        if len(uids) < self._exists:
            raise self._connection.wrong(f"{self._folder.name}: {self._exists} messages, and {len(uids)} are listed")
        return UidSet.of(uids)

    def _listed(self, items: str) -> Iterator[list[list[Value]]]:
        """Yield answers about all messages, for some of them at a time."""
        for first in range(1, self._exists + 1, LISTED):
            messages = f"{first}:{min(first + LISTED - 1, self._exists)}"
            yield self._connection.fetch(messages, items, by_uid=False, most_bytes=LISTED * _LINE_BYTES)

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
            raise self._connection.wrong(f"{self._folder.name}: an answer makes no sense: {error}") from error

    def _fetched(self, batch: Sequence[SourceMessage]) -> Iterator[ReadMessage]:
        begins = self._pieces([message.uid or 0 for message in batch], 0)
        for message in batch:
            begin = begins.pop(message.uid or 0, None)
            if begin is None:
                yield ReadMessage(message, error="the server does not send it; has it been expunged there meanwhile?")
                continue
            try:
                yield ReadMessage(message, with_crlf(self._whole(message, begin)))
            except _TooLargeError:
                yield ReadMessage(message, error=f"larger than {MESSAGE_BYTES_MAX // MIB} MiB")

    def _whole(self, message: SourceMessage, begin: bytes) -> bytes:
        """Return a message from its first piece. A server's RFC822.SIZE may be wrong: it ends with a short piece."""
        whole, piece = bytearray(begin), begin
        while piece and (len(piece) >= PIECE_BYTES or len(whole) < message.size_bytes):
            if len(whole) > MESSAGE_BYTES_MAX:
                raise _TooLargeError
            piece = self._pieces([message.uid or 0], len(whole)).get(message.uid or 0, b"")
            whole += piece
        return bytes(whole)

    def _pieces(self, uids: Sequence[int], start: int) -> dict[int, bytes]:
        """Return a piece of each message, by UIDs."""
        items = f"(UID BODY.PEEK[]<{start}.{PIECE_BYTES}>)"
        most_bytes = len(uids) * (PIECE_BYTES + _LINE_BYTES)
        answers = self._connection.fetch(str(UidSet.of(uids)), items, by_uid=True, most_bytes=most_bytes)
        pieces = dict[int, bytes]()
        try:
            for answer in answers:
                told = pairs(answer[-1])
                body = next((value for name, value in told.items() if name.startswith(b"BODY[]")), None)
                if body is not None and b"UID" in told:
                    pieces[number(told[b"UID"], UID_MAX)] = text(body)
        except SenselessAnswerError as error:
            raise self._connection.wrong(f"{self._folder.name}: an answer makes no sense: {error}") from error
        return pieces


class _TooLargeError(Exception):
    """A message that is larger than any here."""
