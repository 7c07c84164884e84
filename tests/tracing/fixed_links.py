"""Links that a test speaks for, as a tracer sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from protocol.commands import Command, Mbox, Reply
from protocol.parser import Request, Response
from replicator.tracing.descriptions import Key
from replicator.tracing.tracer import Tracer

NOW_MS = 1_795_132_800_000
INBOX_ID, OTHER_ID = b"I" * 16, b"O" * 16


@dataclass(eq=False)
class FixedLink:
    """A link to a node. `keys`: by the direction, the numbers that were given before anybody listened."""

    sid: str
    keys: dict[bool, dict[int, Key]] = field(default_factory=dict)

    def numbers(self, *, sent: bool) -> Mapping[int, Key]:
        return self.keys.get(sent, {})


@dataclass
class FixedLinks:
    """The links of a node. `observed` and `left`: an observer has come, and gone."""

    links: list[FixedLink] = field(default_factory=lambda: [FixedLink("dc2"), FixedLink("dc3")])
    observer: Tracer | None = None
    observed: trio.Event = field(default_factory=trio.Event)
    left: trio.Event = field(default_factory=trio.Event)

    def observe(self, observer: Tracer | None) -> None:
        self.observer = observer
        (self.left if observer is None else self.observed).set()

    def says(self, command: Command, tag: str | None = None, *, to: int = 0, size_bytes: int = 100) -> None:
        """Send a command on a link."""
        if self.observer is not None:
            self.observer.sent(self.links[to], Request(tag, command), size_bytes)

    def hears(self, command: Command, tag: str | None = None, *, of: int = 0, size_bytes: int = 100) -> None:
        """Receive a command on a link."""
        if self.observer is not None:
            self.observer.received(self.links[of], Request(tag, command), size_bytes)

    def hears_reply(self, reply: Reply, tag: str, *, of: int = 0) -> None:
        """Receive a reply on a link."""
        if self.observer is not None:
            self.observer.received(self.links[of], Response(tag, reply), 50)

    def loses(self, link: int) -> None:
        """End a link."""
        if self.observer is not None:
            self.observer.ended(self.links[link])


def inbox_of(user: str, number: int) -> Mbox:
    return Mbox(number, user, "", INBOX_ID, 7)
