"""Differences of each kind, as histories of a mailbox that lead to them, with the expected result of a comparison.

Every mailbox begins as its master numbered it, the same everywhere. Then the nodes diverge: `Side` holds what one of
them has seen since. `far` is the node that was cut off, `near` are its master and the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

NODES = ("dc1", "dc2", "dc3")
BASE_MS = 1_700_000_000_000
MAILBOXES_OF_USER = 5
FORKED_SHARE = 100
"""Rows per change on either side of a large fork."""

Change: TypeAlias = Mapping[str, object]
"""The changed columns of a row."""


class Message(NamedTuple):
    """The result that a comparison should have for a message: see `spark.comparison.messages.kinds`."""

    missing_on: tuple[str, ...] = ()
    expunged_on: tuple[str, ...] = ()
    uid_conflict: bool = False
    flags_differ: bool = False
    damage: bool = False
    only_modseq: bool = False


@dataclass(frozen=True)
class Mailbox:
    """A mailbox with UIDs from 1 on, added by entries from `first_seq` on."""

    number: int
    messages: int
    first_seq: int

    @property
    def id(self) -> bytes:
        return self.number.to_bytes(8) + (self.number * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8)

    @property
    def master(self) -> str:
        return NODES[self.number % len(NODES)]

    @property
    def far(self) -> str:
        return NODES[(self.number + 1) % len(NODES)]

    @property
    def near(self) -> tuple[str, ...]:
        return tuple(node for node in NODES if node != self.far)

    @property
    def user(self) -> str:
        return f"user{self.number // MAILBOXES_OF_USER:07}"


@dataclass
class Side:
    """One node's state of a mailbox. `entries`: number of entries that it has seen since the base, by numbering node.

    `unseen`: number of the base's last entries that it has not seen. `edits`: by UID; None: it does not show the
    message. `index`: by UID, the fault in the index. `told`: messages that its head counts but that are missing.
    """

    entries: dict[str, int] = field(default_factory=dict)
    unseen: int = 0
    risen: int = 0
    told: int = 0
    edits: dict[int, Change | None] = field(default_factory=dict)
    added: list[Change] = field(default_factory=list)
    index: dict[int, str] = field(default_factory=dict)

    def shown(self, mailbox: Mailbox) -> int:
        """Return the number of messages shown."""
        return mailbox.messages + len(self.added) - sum(change is None for change in self.edits.values())


@dataclass
class Plan:
    """A mailbox's sides by node (None: the node lacks the mailbox), and the expected result.

    `messages`: by UID of the base; `added`: messages that only some nodes took in, by GUID.
    """

    kind: str
    relation: str
    sides: dict[str, Side | None]
    messages: dict[int, Message] = field(default_factory=dict)
    added: dict[bytes, Message] = field(default_factory=dict)
    uidvalidity_differs: bool = False


def origin(node: str) -> str:
    return f"{node}.a"


def behind(mailbox: Mailbox) -> Plan:
    """Plan a mailbox whose last messages have not arrived."""
    uids = range(mailbox.messages - 2, mailbox.messages + 1)
    far = Side(unseen=len(uids), edits=dict.fromkeys(uids))
    return Plan(
        "behind", "behind", _sides(mailbox, Side(), far), dict.fromkeys(uids, Message(missing_on=(mailbox.far,)))
    )


def expunged(mailbox: Mailbox) -> Plan:
    near = Side(entries={mailbox.master: 1}, edits={3: None})
    return Plan("expunged", "behind", _sides(mailbox, near, Side()), {3: Message(expunged_on=mailbox.near)})


def flags(mailbox: Mailbox) -> Plan:
    near = Side(entries={mailbox.master: 1}, edits={2: _flagged(mailbox, mailbox.master, 1)})
    return Plan("flags", "behind", _sides(mailbox, near, Side()), {2: Message(flags_differ=True)})


def modseq(mailbox: Mailbox) -> Plan:
    near = Side(entries={mailbox.master: 1}, edits={5: {"modseq": mailbox.messages + 1}})
    return Plan("modseq", "behind", _sides(mailbox, near, Side()), {5: Message(only_modseq=True)})


def uidvalidity(mailbox: Mailbox) -> Plan:
    plan = Plan("uidvalidity", "behind", _sides(mailbox, Side(entries={mailbox.master: 1}, risen=1), Side()), {})
    plan.uidvalidity_differs = True
    return plan


def lacking(mailbox: Mailbox) -> Plan:
    """Plan a mailbox that exists only on some nodes."""
    all_missing = dict.fromkeys(range(1, mailbox.messages + 1), Message(missing_on=(mailbox.far,)))
    return Plan("lacking", "behind", _sides(mailbox, Side(), None), all_missing)


def damaged(mailbox: Mailbox) -> Plan:
    """Plan another body that the head does not reflect."""
    far = Side(edits={4: {"content_hash": b"?" * 32}})
    return Plan("damaged", "damaged", _sides(mailbox, Side(), far), {4: Message(damage=True)})


def miscounted(mailbox: Mailbox) -> Plan:
    """Plan a lost row that the head does not reflect."""
    far = Side(told=1, edits={4: None})
    return Plan("miscounted", "damaged", _sides(mailbox, Side(), far), {4: Message(damage=True)})


def index(mailbox: Mailbox) -> Plan:
    return Plan("index", "equal", _sides(mailbox, Side(), Side(index={1: "missing", 2: "different", 3: "extra"})), {})


def uid_conflict(mailbox: Mailbox) -> Plan:
    """Plan a UID that both sides have given."""
    near, far = Side(), Side()
    plan = Plan("uid_conflict", "forked", _sides(mailbox, near, far), {})
    _conflict(plan, mailbox, near, far, 1)
    return plan


def forked(mailbox: Mailbox) -> Plan:
    """Plan a fork with flags changed on either side, messages expunged on either side, and UID conflicts."""
    near, far = Side(), Side()
    plan = Plan("forked", "forked", _sides(mailbox, near, far), {})
    for turn, uid in enumerate(range(1, mailbox.messages + 1, FORKED_SHARE)):
        numbers, side = ((mailbox.master, near), (mailbox.far, far))[turn % 2]
        entry = side.entries[numbers] = side.entries.get(numbers, 0) + 1
        if turn % 4 < 2:
            side.edits[uid] = _flagged(mailbox, numbers, entry)
            plan.messages[uid] = Message(flags_differ=True)
        else:
            side.edits[uid] = None
            plan.messages[uid] = Message(expunged_on=mailbox.near if side is near else (mailbox.far,))
    _conflict(plan, mailbox, near, far, mailbox.messages // (10 * FORKED_SHARE) + 1)
    return plan


KINDS: Sequence[Callable[[Mailbox], Plan]] = (
    behind, expunged, flags, modseq, uidvalidity, lacking, damaged, miscounted, index, uid_conflict, forked,
)  # fmt: skip


def _sides(mailbox: Mailbox, near: Side, far: Side | None) -> dict[str, Side | None]:
    return {**dict.fromkeys(mailbox.near, near), mailbox.far: far}


def _flagged(mailbox: Mailbox, node: str, entry: int) -> Change:
    flag = {"flag": "\\Answered", "time": BASE_MS << 16, "sid": node, "set": True}
    return {"flags": [flag], "modseq": mailbox.messages + entry}


def _conflict(plan: Plan, mailbox: Mailbox, near: Side, far: Side, count: int) -> None:
    """Add `count` messages on each side, under the same UIDs."""
    lacking: Iterable[tuple[str, Side, tuple[str, ...]]] = (
        (mailbox.master, near, (mailbox.far,)),
        (mailbox.far, far, mailbox.near),
    )
    for node, side, missing_on in lacking:
        for number in range(1, count + 1):
            entry = side.entries[node] = side.entries.get(node, 0) + 1
            guid = b"new" + NODES.index(node).to_bytes(1) + mailbox.number.to_bytes(6) + entry.to_bytes(6)
            side.added.append(_added(mailbox, node, mailbox.messages + number, entry, guid))
            plan.added[guid] = Message(missing_on=missing_on, uid_conflict=True)


def _added(mailbox: Mailbox, node: str, uid: int, entry: int, guid: bytes) -> Change:
    seq = seq_of(mailbox, node, entry)
    return {
        "mailbox": mailbox.id, "uid": uid, "origin": origin(node), "seq": seq, "change": 0, "guid": guid,
        "claim_origin": origin(node), "claim_seq": seq, "modseq": mailbox.messages + entry, "flags": [],
        "received_ms": BASE_MS, "size_bytes": 4096, "content_hash": guid + guid, "also": [],
        "saved_ms": BASE_MS,
    }  # fmt: skip


def seq_of(mailbox: Mailbox, node: str, entry: int) -> int:
    """Return the seq of the n-th entry that the node numbered since the base; for its master, 0 is the base's last."""
    return mailbox.first_seq + entry + (mailbox.messages - 1 if node == mailbox.master else 0)
