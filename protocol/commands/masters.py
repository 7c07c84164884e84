"""Commands about terms and masters (design section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.values import Dot


@dataclass(frozen=True, slots=True)
class Root:
    """A new term begins under `root`: forget cached masters and answer with `Dropped`."""

    term: int
    root: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A statement that `sid` masters nothing from before `term`; `context` is what that node has."""

    term: int
    sid: str
    context: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Who:
    """Ask for the master of `scope` in this term; if it has none, `candidate` becomes it. Answered by `Master`.

    `former` hands the scope over: if the root knows that node as its master, `candidate` becomes the new one.
    """

    term: int
    scope: str
    candidate: str
    former: str | None = None


@dataclass(frozen=True, slots=True)
class MasterMove:
    """Ask that `destination` become the mailbox's master.

    Answered by `Moved`, or by `Refused` if its master is using it.

    `now`: an operator asks for the move, so it happens even while the mailbox is in use.
    """

    mailbox: int
    term: int
    destination: str
    now: bool = False
