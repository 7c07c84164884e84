"""Data types common to all sources of mail: what a source tells of its folders and messages, and how they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from protocol.values import UidSet


class SourceError(Exception):
    """A source, or a folder of it, that cannot be read. The text names the place and the problem."""


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """One message of a folder.

    `name` tells its location, for people; `uid` is the one by which clients know it, if the source tells; `key` names
    it before it has a UID, and after; `place` is its number in a file of many; `size_bytes` is roughly right; `guid` is
    the one that syncs with a Dovecot know it by.
    """

    name: str
    flags: frozenset[str]
    received_ms: int | None
    uid: int | None = None
    key: str | None = None
    place: int = 0
    size_bytes: int = 0
    guid: bytes | None = None


@dataclass(frozen=True, slots=True)
class SourceFolder:
    """A folder, with what mail clients cache of it: None is what the source does not tell.

    `uidnext` is above all UIDs that clients may know, and `highestmodseq` at or above all MODSEQs (RFC 7162). `use` is
    its special use (RFC 6154). `version` changes with anything in the folder. `at` is where the source has the folder.
    """

    name: str
    at: str
    messages: int = 0
    uidvalidity: int | None = None
    uidnext: int | None = None
    highestmodseq: int | None = None
    use: str | None = None
    version: str | None = None


class Listing(NamedTuple):
    """Messages of a folder in the order of their import, and the UIDs of all; None: the source tells no UIDs.

    `messages` may lack some that were taken at an earlier time and have not changed since.
    """

    messages: Sequence[SourceMessage]
    uids: UidSet | None


class ReadMessage(NamedTuple):
    """A message and its text with CRLF line ends, or why it cannot be read. A server may tell its GUID only here.

    `former`: the text as earlier versions have imported it, if they did so differently.
    """

    message: SourceMessage
    text: bytes = b""
    error: str | None = None
    former: bytes | None = None


class FolderReader(Protocol):
    """A folder that is being read, by one thread at a time."""

    def listing(self, since: int | None = None, taken: Collection[int] = ()) -> Listing:
        """Return the folder's messages; of those with UIDs in `taken`, only what has changed since a HIGHESTMODSEQ.

        A source that cannot tell changes returns all.
        Raises SourceError.
        """
        ...

    def texts(self, messages: Iterable[SourceMessage]) -> Iterator[ReadMessage]:
        """Yield each of these messages with its text. Raises SourceError if no more can be read."""
        ...


class MailSource(Protocol):
    """A user's mail elsewhere. `notes` tell people what the source has and nobody can take, or was mended.

    `unreadable`: folders that cannot be read, and why. `subscriptions`: names, with or without a folder; None: the
    source tells none.
    """

    @property
    def folders(self) -> Sequence[SourceFolder]:
        """The folders, in the order of their import: those above others first."""
        ...

    @property
    def subscriptions(self) -> Sequence[str] | None:
        """Names of folders."""
        ...

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Reasons, by folders."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Sentences."""
        ...

    @property
    def readers_max(self) -> int:
        """Number of folders that may be read at once."""
        ...

    def open(self, folder: SourceFolder) -> AbstractContextManager[FolderReader]:
        """Begin to read a folder; several may be read at once, in threads. Raises SourceError."""
        ...

    def close(self) -> None:
        """End what is open."""
        ...


def with_crlf(text: bytes) -> bytes:
    """Return a text with CRLF line ends (RFC 5322 section 2.1)."""
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
