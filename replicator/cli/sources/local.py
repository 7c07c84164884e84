"""Mail in files of this machine: a source whose messages are known as soon as it is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from protocol.values import UidSet
from replicator.cli.sources.message import FolderReader, Listing, ReadMessage, SourceFolder, SourceMessage

Read = Callable[[SourceMessage], ReadMessage]
"""Reads one message. Raises OSError."""


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """The messages of a folder, whether it tells UIDs, and how one of them is read."""

    messages: Sequence[SourceMessage]
    read: Read
    has_uids: bool = False

    def listing(self, since: int | None = None, taken: Collection[int] = ()) -> Listing:  # noqa: ARG002 - tells all
        """See `FolderReader`."""
        uids = UidSet.of(message.uid for message in self.messages if message.uid is not None)
        return Listing(self.messages, uids if self.has_uids else None)

    def texts(self, messages: Iterable[SourceMessage]) -> Iterator[ReadMessage]:
        """See `FolderReader`."""
        for message in messages:
            try:
                yield self.read(message)
            except OSError as error:
                yield ReadMessage(message, error=error.strerror or str(error))


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A source in files. See `MailSource`. `contents`: by names."""

    contents: Mapping[str, LocalFolder]
    folders: Sequence[SourceFolder]
    subscriptions: Sequence[str] | None = None
    notes: Sequence[str] = ()
    readers_max: int = 8
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def open(self, folder: SourceFolder) -> Iterator[FolderReader]:
        """See `MailSource`."""
        yield self.contents[folder.name]

    def close(self) -> None:
        """See `MailSource`."""
