"""One user of a Dovecot and of a cluster of three nodes: deeds and syncs, and the comparison in the end."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random

from tests.dsync.histories.comparison import differences
from tests.dsync.histories.deeds import Deeds
from tests.dsync.histories.ledger import Ledger
from tests.dsync.histories.servers import DOVECOT, Groups, Servers
from tests.dsync.histories.side import Account, Side

SYNCS = {"c": 3, "f": 1, "s": 3}
"""Kinds of syncs (`History._call`), and how often each is done among others."""

STEPS_MAX = 8
"""Deeds and syncs of a part of the history, between changes of the links."""

SYNCS_MAX = 2
"""Syncs after which all is equal: folders that want one name may need a second one (docs/dovecot.md)."""

CHANGED_OR_OLDER = 2
"""Dovecot's exit code where the next sync compares all mails."""

NOT_FOUND = 68
"""Dovecot's exit code where it misses a folder above one that it has just moved; the next sync goes on."""

MOVES_MAX = 4
"""Syncs that may end so, one after another: each has moved a folder."""

EQUAL_WITHIN_S = 20.0


@dataclass
class History:
    """A user's history. `story`: for people who look into a failure. `syncs`: after which all was equal in the end."""

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
        self._state = ""  # what Dovecot remembers in syncs of the kind `s`

    def go_on(self, groups: Groups) -> None:
        """Do some deeds and syncs while nodes of different groups do not reach each other."""
        self._begin_part(str(groups), is_cut=len(groups) > 1)
        for _ in range(self._random.randint(1, STEPS_MAX)):
            match self._random.choice("ddnnnnbss"):
                case "d":
                    self._deeds.one(self._dovecot)
                case "n":
                    self._deeds.one(self._random.choice(self._nodes))
                case "b":
                    self._deeds.deliver([self._dovecot, self._random.choice(self._nodes)])
                case _:
                    code = self._sync(self._random.choice(self._nodes), self._kind())
                    assert code in {0, CHANGED_OR_OLDER}

    def end(self) -> None:
        """Sync until all servers show the same, once all nodes do, and check that another sync changes nothing."""
        self._begin_part("the end", is_cut=False)
        nodes, different = self._equal_nodes(), ["not synced yet"]
        while different and self.syncs < SYNCS_MAX:
            code = self._sync_wholly()
            self.syncs += 1
            nodes = self._equal_nodes()
            different = self._differences(nodes) or [f"exit code {code}"] * (code != 0)
        assert not different, "\n".join(different)
        assert self._sync_wholly() == 0
        assert self._equal_nodes() == nodes, "another sync changes something at the nodes"
        assert not self._differences(nodes), "another sync changes something at Dovecot"
        self._ledger.check(nodes)

    def _begin_part(self, what: str, *, is_cut: bool) -> None:
        self.story.append(f"-- {what}")
        self._ledger.begin_part(is_cut=is_cut)

    def _differences(self, nodes: Account) -> list[str]:
        return [*differences(self._dovecot.account(), nodes, self._ledger.dovecots_copies)]

    # ---- syncs

    def _kind(self) -> str:
        [kind] = self._random.choices([*SYNCS], [*SYNCS.values()])
        return kind

    def _sync_wholly(self) -> int:
        """Sync, and do so again where a sync by a state has only found out that this stands for too little.

        Return doveadm's exit code.
        """
        node, kind = self._random.choice(self._nodes), self._kind()
        before, code = self._state, self._sync(node, kind)
        if kind == "s" and code == CHANGED_OR_OLDER and before and not self._state:
            code = self._sync(node, kind)
        assert code in {0, CHANGED_OR_OLDER}
        return code

    def _sync(self, node: Side, kind: str) -> int:
        """Sync, note what that does to mails, and return doveadm's exit code."""
        before, before_at_node = self._dovecot.account(), node.account()
        code, said = self._call(node, kind)
        after_at_node = node.account()
        self._ledger.note_folders(after_at_node)
        after = self._dovecot.account()
        self.story.append(f"sync {kind} with {node.name}: {code} {said}\n  {node.name}: {after_at_node}")
        self.story.append(f"  {DOVECOT}: {after}")
        for name, tokens in self._ledger.note_at_dovecot(before, after).items():
            self.story.append(f"  gone with {name}: {tokens}")
        self._ledger.note_at_node(before_at_node, after_at_node, after)
        return code

    def _call(self, node: Side, kind: str) -> tuple[int, str]:
        """Sync in one of the ways that there are, and return doveadm's exit code and what it says."""
        options = {"c": [], "f": ["-f"], "s": ["-s", self._state]}[kind]
        host, port = self.servers.cluster.node(node.name).address("doveadm")
        words, moves = ["sync", "-u", self.user, *options, f"tcp:{host}:{port}"], 0
        done = self.servers.dovecot.run(*words)
        while done.returncode == NOT_FOUND and b"Mailbox doesn't exist" in done.stderr and moves < MOVES_MAX:
            done, moves = self.servers.dovecot.run(*words), moves + 1
        if kind == "s":
            self._state = done.stdout.decode().strip()
        return done.returncode, done.stderr.decode().strip()

    def _equal_nodes(self) -> Account:
        """Return what all nodes show, once they show the same."""
        by = time.monotonic() + EQUAL_WITHIN_S
        while True:
            first, *others = accounts = [node.account() for node in self._nodes]
            if all(other == first for other in others):
                return first
            assert time.monotonic() < by, "nodes stay different:\n" + "\n".join(map(str, accounts))
            time.sleep(0.02)
