"""A cluster, its faults and its clients, all drawn from one seed, in virtual time.

Chaos first: clients change mailboxes at every node while links break and nodes stop and start. Then all is healed and
the cluster must converge. Clients keep a ledger of what they were told; each node is watched for what it shows.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import trio
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.errors import MailError
from replicator.mailstore import INBOX, NewMessage
from replicator.store.branches import strays
from replicator.store.transaction import Commit
from replicator.view import Message
from tests.replication.cluster import USER, Cluster, Node, cluster

FOLDERS = (INBOX, "Work", "Work/Done")
FLAGS = ("\\Seen", "\\Flagged", "$Later")
CHAOS_S = 40.0


@dataclass
class Ledger:
    """What clients were told, by the text of each mail."""

    saved: set[str] = field(default_factory=set)
    expunged: set[str] = field(default_factory=set)  # asked for, whether or not it was confirmed
    trace: list[tuple[float, str]] = field(default_factory=list)


class Watch:
    """What one node shows of each mailbox in one life: the promises of design section 3, checked at every commit."""

    def __init__(self, shown: dict[tuple[bytes, int], tuple[object, int]]) -> None:
        self._named = shown  # (mailbox, UID) -> placement, over all lives of the node
        self._state: dict[bytes, tuple[int, int, dict[int, Message]]] = {}

    def note(self, commit: Commit) -> None:
        for change in commit.changes:
            uidnext, modseq, rows = self._state.get(change.mailbox_id, (0, 0, {}))
            assert change.modseq > modseq, "a MODSEQ was shown twice"
            for uid in change.expunged:
                rows.pop(uid, None)
            for message in change.changed:
                placement, is_new = (message.dot, message.change), (change.mailbox_id, message.uid) not in self._named
                assert self._named.setdefault((change.mailbox_id, message.uid), placement) == placement, (
                    "a UID named two messages"
                )
                before = rows.get(message.uid)
                if is_new:
                    assert message.uid >= uidnext, "a message appeared below a UIDNEXT that was shown"
                if before is None or before.flags != message.flags:
                    assert message.modseq > modseq, "a change appeared at a MODSEQ that was shown"
                rows[message.uid] = message
            assert change.uidnext >= uidnext
            self._state[change.mailbox_id] = change.uidnext, change.modseq, rows


class World:
    def __init__(self, seed: int, directory: Path, clock: MockClock) -> None:
        self.random = random.Random(seed)
        self.directory, self.clock = directory, clock
        self.ledger = Ledger()
        self.watched: set[int] = set()
        self.named: dict[str, dict[tuple[bytes, int], tuple[object, int]]] = {}
        self.mails = 0

    async def run(self) -> None:
        size = self.random.choice((2, 3, 3, 3, 4, 5))
        copies = self.random.choice((1, 2, 2))
        async with cluster(self.directory, self.clock, size, copies=copies) as nodes:
            self.say(f"{size} nodes, {copies} copies")
            self._watch(nodes.all())
            with trio.move_on_after(CHAOS_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._break_things, nodes)
                    for number in range(self.random.randint(2, 5)):
                        nursery.start_soon(self._client, nodes, number)
            await self._heal(nodes)
            await self._check(nodes)

    def say(self, what: str) -> None:
        self.ledger.trace.append((trio.current_time(), what))

    # ---- faults

    async def _break_things(self, nodes: Cluster) -> None:
        pairs = list(combinations(nodes.sids, 2))
        while True:
            await trio.sleep(self.random.uniform(0.5, 6))
            choice = self.random.random()
            if choice < 0.35:
                pair = self.random.choice(pairs)
                self.say(f"cut {pair}")
                nodes.network.cut(pair)
            elif choice < 0.5:
                group = set(self.random.sample(nodes.sids, self.random.randint(1, len(nodes.sids) - 1)))
                self.say(f"part {sorted(group)}")
                nodes.network.cut(*(pair for pair in pairs if (pair[0] in group) != (pair[1] in group)))
            elif choice < 0.8:
                self.say("mend all")
                nodes.network.mend(*pairs)
            elif len(nodes.nodes) > 1 and choice < 0.9:
                sid = self.random.choice(sorted(nodes.nodes))
                self.say(f"stop {sid}")
                with trio.CancelScope(shield=True):
                    await nodes.stop(sid)
            else:
                for sid in nodes.sids:
                    if sid not in nodes.nodes:
                        self.say(f"start {sid}")
                        with trio.CancelScope(shield=True):
                            await nodes.start(sid)
                            self._watch(nodes.all())

    def _watch(self, running: Iterable[Node]) -> None:
        for node in running:
            if id(node) not in self.watched:
                self.watched.add(id(node))
                node.store.listeners.insert(0, Watch(self.named.setdefault(node.sid, {})).note)

    # ---- clients

    async def _client(self, nodes: Cluster, number: int) -> None:
        while True:
            await trio.sleep(self.random.uniform(0.05, 2))
            node = nodes.nodes.get(self.random.choice(nodes.sids))
            if node is None:
                continue
            try:
                await self._act(node, number)
            except (MailError, trio.ClosedResourceError) as error:
                self.say(f"client {number} at {node.sid}: {error}")

    async def _act(self, node: Node, number: int) -> None:
        name = self.random.choice(FOLDERS)
        choice = self.random.random()
        if choice < 0.08:
            await self._change_folders(node, name)
            return
        view = await node.view(name)
        uids = list(view.messages)
        if choice < 0.5 or not uids:
            self.mails += 1
            text = f"mail {self.mails} of client {number}"
            saved = await node.mail.save(await node.mail.folder("alice", name), NewMessage(text.encode()))
            assert saved.uid in view.messages or view.deleted or not nodes_view_is_current(node, view), "own write"
            self.ledger.saved.add(text)
            self.say(f"{text} is {name} {saved.uid} at {node.sid}")
            return
        some = UidSet.of(self.random.sample(uids, min(len(uids), self.random.randint(1, 3))))
        if choice < 0.7:
            flag = frozenset({self.random.choice(FLAGS)})
            added = self.random.random() < 0.6
            await node.mail.store_flags(
                view, some, added=flag if added else frozenset(), removed=frozenset() if added else flag
            )
        elif choice < 0.85:
            texts = [
                (await node.mail.read_content(view.messages[uid])).decode() for uid in some if uid in view.messages
            ]
            self.ledger.expunged |= set(texts)
            self.say(f"expunge {texts} from {name} at {node.sid}")
            await node.mail.expunge(view, some)
        else:
            destination = await node.mail.folder("alice", self.random.choice(FOLDERS))
            self.say(f"copy {some} from {name} to {destination.name} at {node.sid}")
            await node.mail.copy(view, some, destination)

    async def _change_folders(self, node: Node, name: str) -> None:
        if name == INBOX:
            await node.mail.subscribe("alice", name, subscribed=self.random.random() < 0.5)
        else:
            self.say(f"create {name} at {node.sid}")
            await node.mail.create_folder("alice", name)

    # ---- the end

    async def _heal(self, nodes: Cluster) -> None:
        self.say("heal")
        nodes.network.mend(*combinations(nodes.sids, 2))
        for sid in nodes.sids:
            if sid not in nodes.nodes:
                await nodes.start(sid)
                self._watch(nodes.all())
        await nodes.linked()
        with trio.fail_after(120):
            while True:
                await nodes.converged()
                if not any([await node.store.read(lambda reader: strays(reader, USER)) for node in nodes.all()]):
                    return
                await trio.sleep(0.1)

    async def _check(self, nodes: Cluster) -> None:
        for node in nodes.all():
            texts: set[str] = set()
            for folder in await node.mail.folders("alice"):
                texts |= set((await node.texts(folder.name)).values())
            lost = self.ledger.saved - self.ledger.expunged - texts
            assert not lost, f"reported mails are lost at {node.sid}: {sorted(lost)}"


def nodes_view_is_current(node: Node, view: object) -> bool:
    """Whether the view is the one that its node would give now: the mailbox may have become another one."""
    return any(known is view for known in node.store.views._views.values())
