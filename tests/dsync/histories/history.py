"""One user of a Dovecot and of a cluster of three nodes: deeds and syncs, and the comparison in the end."""

from __future__ import annotations

import imaplib
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Self

from benchmarks.clusters.cluster import Cluster
from benchmarks.clusters.cluster import PASSWORD as NODES_PASSWORD
from replicator.config import Address
from replicator.dsync.rules.copies import COPIES_MAX, guid_of_copy
from tests.dsync.dovecot import USERS_PASSWORD, Dovecot
from tests.dsync.histories.deeds import Deeds
from tests.dsync.histories.ledger import Ledger
from tests.dsync.histories.side import Account, Side

SYNCS = {"c": 3, "f": 1, "s": 3}
"""Kinds of syncs, and how often each is done among others."""

SYNCS_MAX = 2
"""Syncs after which all is equal: folders that want one name may need a second one."""

EQUAL_WITHIN_S = 20.0
STEPS_MAX = 6
"""Of a part of the history, between changes of the links."""


@dataclass(frozen=True)
class Servers:
    """The Dovecot and the nodes that all histories share."""

    dovecot: Dovecot
    dovecots_imap: Address
    cluster: Cluster

    def side(self, name: str, user: str, stack: ExitStack) -> Side:
        """Return a user's side at a server."""
        is_dovecot = name == "dovecot"
        address = self.dovecots_imap if is_dovecot else self.cluster.node(name).address("imap")
        client = stack.enter_context(imaplib.IMAP4(*address, timeout=60))
        client.login(user, USERS_PASSWORD if is_dovecot else NODES_PASSWORD)
        return Side(name, client, is_dovecot)


@dataclass
class History:
    """A user's history."""

    servers: Servers
    user: str
    random: Random
    stack: ExitStack
    story: list[str] = field(default_factory=list)
    state: str = ""
    syncs: int = 0
    _parts: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.user)
        self._deeds = Deeds(self.random, self.ledger, self.story)
        self._dovecot = self.servers.side("dovecot", self.user, self.stack)
        self._nodes = [self.servers.side(node.sid, self.user, self.stack) for node in self.servers.cluster.nodes]

    def go_on(self, groups: Collection[Collection[str]]) -> None:
        """Do some deeds and syncs while nodes of different groups do not reach each other."""
        self.story.append(f"-- {groups}")
        self._parts += 1
        if len(groups) == 1:
            self.ledger.cut = None
        elif self.ledger.cut is None:
            self.ledger.cut = self._parts
        for _ in range(self.random.randint(1, STEPS_MAX)):
            match self.random.choice("ddnnnnbss"):
                case "d":
                    self._deeds.one(self._dovecot)
                case "n":
                    self._deeds.one(self.random.choice(self._nodes))
                case "b":
                    self._deeds.deliver([self._dovecot, self.random.choice(self._nodes)])
                case _:
                    self._sync(self.random.choice(self._nodes))

    def end(self) -> None:
        """Sync until nothing changes any more, once all nodes have the same, and compare all servers."""
        self.story.append("-- end")
        self.ledger.cut = None
        self._equal_nodes()
        for number in range(SYNCS_MAX + 1):
            node = self.random.choice(self._nodes)
            code = self._sync(node)
            accounts = self._equal_nodes()
            different = self._difference(accounts)
            if not different and code == 0:
                break
        self.syncs = number + 1
        assert not different, different
        self._sync(self.random.choice(self._nodes))
        assert self._equal_nodes() == accounts, "another sync changes something"
        different = self._difference(accounts)
        assert not different, different
        self.ledger.check(accounts)

    def _difference(self, nodes: Account) -> str:
        return difference(self._dovecot.account(), nodes, self.ledger.dovecots_copies)

    def _sync(self, node: Side) -> int:
        [kind] = self.random.choices([*SYNCS], [*SYNCS.values()])
        before, before_at_node = self._dovecot.account(), node.account()
        code = self._call(node, kind)
        after, after_at_node = self._dovecot.account(), node.account()
        self.story.append(f"sync {kind} with {node.name}: {code}\n  {after_at_node}\n  {after}")
        assert code in {0, 2}
        self._note_lost(before, after)
        self._note_renumbered(before_at_node, after_at_node)
        return code

    def _call(self, node: Side, kind: str) -> int:
        """Sync in one of the ways that there are, and return doveadm's exit code."""
        options = {"c": [], "f": ["-f"], "s": ["-s", self.state]}[kind]
        host, port = self.servers.cluster.node(node.name).address("doveadm")
        done = self.servers.dovecot.run("sync", "-u", self.user, *options, f"tcp:{host}:{port}")
        if kind == "s":
            self.state = done.stdout.decode().strip()
        if done.stderr:
            self.story.append(done.stderr.decode().strip())
        return done.returncode

    def _note_lost(self, before: Account, after: Account) -> None:
        """Note mail that is gone with folders that users of nodes have deleted, and Dovecot has now deleted."""
        ids = {folder.mailbox_id for folder in after.folders.values()}
        gone = {
            mail.token
            for folder in before.folders.values()
            if folder.mailbox_id not in ids
            for mail in folder.mails
            if mail.token not in after.tokens
        }
        if gone:
            self.story.append(f"gone with folders: {sorted(gone)}")
            self.ledger.expunged |= gone

    def _note_renumbered(self, before: Account, after: Account) -> None:
        """Note mails to which the sync has given other UIDs at the node."""
        uids = {mail.guid: mail.uid for folder in before.folders.values() for mail in folder.mails}
        for name, folder in after.folders.items():
            for mail in folder.mails:
                self.ledger.homes.setdefault((mail.token, name), set()).add(folder.mailbox_id)
        self.ledger.renumbered.update(
            (mail.token, self.ledger.cut)
            for folder in after.folders.values()
            for mail in folder.mails
            if uids.get(mail.guid, mail.uid) != mail.uid
        )

    def _equal_nodes(self) -> Account:
        """Return what all nodes show, once they show the same."""
        by = time.monotonic() + EQUAL_WITHIN_S
        while True:
            first, *others = [node.account() for node in self._nodes]
            if all(other == first for other in others):
                return first
            assert time.monotonic() < by, f"nodes stay different: {[first, *others]}"
            time.sleep(0.02)


def difference(dovecot: Account, node: Account, copies: Collection[str]) -> str:
    """Return what differs, as text. `copies`: GUIDs that Dovecot has given to several mails of a folder.

    All but one of those have others at a node.
    """
    sources = {guid_of_copy(guid, number): guid for guid in copies for number in range(1, COPIES_MAX + 1)}
    found = []
    if dovecot.subscriptions != node.subscriptions:
        found.append(f"subscriptions: {set(dovecot.subscriptions)} {set(node.subscriptions)}")
    if dovecot.folders.keys() != node.folders.keys():
        found.append(f"folders: {set(dovecot.folders)} {set(node.folders)}")
    for name in dovecot.folders.keys() & node.folders.keys():
        theirs, ours = dovecot.folders[name], node.folders[name]
        mails = [mail._replace(guid=sources.get(mail.guid, mail.guid)) for mail in ours.mails]
        if [*theirs.mails] != mails:
            only = [mail for mail in theirs.mails if mail not in mails], [mail for mail in mails if mail not in theirs.mails]
            found.append(f"{name}: at Dovecot {[*map(str, only[0])]}, at nodes {[*map(str, only[1])]}")
        numbers = [(one.uidvalidity, one.uidnext) for one in (theirs, ours)]
        if numbers[0] != numbers[1]:
            found.append(f"{name}: numbers {numbers}")
    return "\n".join(found)
