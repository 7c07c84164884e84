"""Two servers that replicate to each other: the interface that loads use, the same for servers of each kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import psutil

from benchmarks.clients.wire import Address, ImapClient
from benchmarks.clusters.cluster import PASSWORD


class Doors(NamedTuple):
    """Addresses of one server."""

    lmtp: Address
    imap: Address

    def session(self, user: str) -> ImapClient:
        return ImapClient(self.imap, user, PASSWORD)


class Pair(ABC):
    """Two servers under `directory`, with no mail. Mail comes to the near one, and the far one shows it, too.

    Entering the `with` block starts both, or only the near one if `late`; leaving it ends all their processes.
    """

    name: ClassVar[str]

    def __init__(self, directory: Path, users: Sequence[str], *, late: bool = False) -> None:
        self.directory = directory
        self.users = users
        self.late = late

    @classmethod
    @abstractmethod
    def version(cls) -> str | None:
        """Return the version that is installed, or None if none is."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @property
    @abstractmethod
    def near(self) -> Doors: ...

    @property
    @abstractmethod
    def far(self) -> Doors: ...

    @abstractmethod
    def start_far(self) -> None:
        """Start the far server, which was left out, with nothing on its disk, and have it filled as operators do."""

    @abstractmethod
    def is_filled(self) -> bool:
        """Return True if by its own account the far server that was left out has everything, with all texts."""

    def is_settled(self) -> bool:
        """Return True if both servers, which have started together, have done what they do for each user at first."""
        return True

    @abstractmethod
    def near_processes(self) -> list[psutil.Process]: ...

    @abstractmethod
    def far_processes(self) -> list[psutil.Process]: ...

    @abstractmethod
    def log_tail(self) -> str:
        """Return the last lines of both logs."""
