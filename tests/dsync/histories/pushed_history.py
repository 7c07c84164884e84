"""One user of a Dovecot and of a cluster, a node of which syncs with the Dovecot by itself after each change."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random

from tests.dsync.histories.comparison import differences
from tests.dsync.histories.deeds import Deeds
from tests.dsync.histories.ledger import Ledger
from tests.dsync.histories.servers import DOVECOT, Groups, Servers
from tests.dsync.histories.side import Account

STEPS_MAX = 8
EQUAL_WITHIN_S = 60.0


@dataclass
class PushedHistory:
    """A user's history. `story`: for people who look into a failure."""

    servers: Servers
    user: str
    stack: ExitStack
    story: list[str] = field(default_factory=list)
    syncs: int = 0

    def __post_init__(self) -> None:
        self._random = Random(self.user)
        self._ledger = Ledger(self.user)
        self._dovecot = self.servers.side(DOVECOT, self.user, self.stack)
        self._dovecot.namesakes = self._ledger.namesakes
        self._nodes = [self.servers.side(node.sid, self.user, self.stack) for node in self.servers.cluster.nodes]
        self._deeds = Deeds(self._random, self._ledger, self.story)

    def go_on(self, groups: Groups) -> None:
        """Do some deeds while nodes of different groups do not reach each other."""
        self.story.append(f"-- {groups}")
        for _ in range(self._random.randint(1, STEPS_MAX)):
            match self._random.choice("ddnnnnb"):
                case "d":
                    self._deeds.one(self._dovecot)
                case "n":
                    self._deeds.one(self._random.choice(self._nodes))
                case _:
                    self._deeds.deliver([self._dovecot, self._random.choice(self._nodes)])

    def end(self) -> None:
        """Wait until all servers show the same by themselves, and check that no mail is lost."""
        by = time.monotonic() + EQUAL_WITHIN_S
        while (different := self._differences()) and time.monotonic() < by:
            time.sleep(0.1)  # each look takes as long
        assert not different, "\n".join(different)
        kept = self._ledger.accepted - self._ledger.expunged - self._ledger.put_late
        lost = kept - self._nodes[0].account().tokens
        assert not lost, f"mails that nobody has expunged are lost: {sorted(lost)}"

    def _differences(self) -> list[str]:
        first, *others = (node.account() for node in self._nodes)
        different = [f"nodes stay different: {first} {other}" for other in others if other != first]
        return [*different, *self._at_dovecot(first)]

    def _at_dovecot(self, node: Account) -> list[str]:
        return [*differences(self._dovecot.account(), node, self._ledger.dovecots_copies)]
