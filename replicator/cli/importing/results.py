"""Results of an import, for people and for scripts."""

from __future__ import annotations

from dataclasses import dataclass, field


class StopSign:
    """Why an import ends early, told to all its threads. A sign below another one is set with that."""

    def __init__(self, above: StopSign | None = None) -> None:
        self._above = above
        self._reason: str | None = None

    @property
    def reason(self) -> str | None:
        """The reason; None: go on."""
        return self._reason or (self._above.reason if self._above is not None else None)

    def set(self, reason: str) -> None:
        """Set the sign; the first reason counts."""
        self._reason = self._reason or reason


@dataclass(frozen=True, slots=True)
class Failure:
    """A message, or something else, that was not imported."""

    message: str
    reason: str


@dataclass(slots=True)
class FolderResult:
    """Counts of messages of a folder. `empty`: without content, skipped.

    `uids_kept`: its mail has the UIDs and the UIDVALIDITY of the source, None: that tells none. `reflagged` and
    `expunged` follow what happened at the source since an earlier import; `stayed` did not, since the message was
    changed here. `gone`: there no more, and kept here. `removed`: the
    folder was deleted here since an earlier import. `left`: not tried.
    """

    name: str
    uids_kept: bool | None = None
    imported: int = 0
    present: int = 0
    empty: int = 0
    reflagged: int = 0
    expunged: int = 0
    stayed: int = 0
    gone: int = 0
    removed: int = 0
    failed: int = 0
    left: int = 0


@dataclass(slots=True)
class ImportResult:
    """The outcome for a user. `stopped`: the reason of an early end; `notes`: what people should know besides."""

    folders: list[FolderResult] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stopped: str | None = None

    @property
    def is_complete(self) -> bool:
        """True if everything was taken."""
        return not (self.failures or self.stopped or self.total("left"))

    def total(self, count: str) -> int:
        """Return the sum of a count of all folders."""
        return sum(int(getattr(folder, count)) for folder in self.folders)
