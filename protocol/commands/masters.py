"""Terms, and who numbers what in them (design section 5)."""

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
    """`sid` masters nothing from before `term`; `context` is what it has."""

    term: int
    sid: str
    context: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Who:
    """Who masters `scope` in this term? If nobody does, `candidate` from now on. Answered by `Master`.

    `former` hands it over: if that node masters it as far as the root knows, `candidate` does from now on.
    """

    term: int
    scope: str
    candidate: str
    former: str | None = None


@dataclass(frozen=True, slots=True)
class MasterMove:
    """Let `destination` master the mailbox. Answered by `Moved`, or by `Refused` if its master is using it.

    `now`: an operator wants it, whoever uses it.
    """

    mailbox: int
    term: int
    destination: str
    now: bool = False
