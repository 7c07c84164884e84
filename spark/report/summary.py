"""An audit's findings as counts: the contents of `summary.json`, of the printed output, and of the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One node's inventory. `lag_entries`: number of entries that its log lacked and another node's had.

    `behind`: mailboxes of which another node shows more; `missing`, `expunged`: messages that another node shows and
    this one has never seen, or has removed. `index`: wrong rows of its index of GUIDs by what is wrong (`missing`,
    `extra`, `different`). `unreadable`: rows that it could not read.
    """

    node: str
    taken_ms: int
    mailboxes: int
    messages: int
    lag_entries: int
    behind: int
    missing: int
    expunged: int
    unreadable: int
    index: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PairSummary:
    """The number of mailboxes in which two nodes differ."""

    one: str
    other: str
    unequal: int


@dataclass(frozen=True, slots=True)
class UserSummary:
    """A user with differences: the number of mailboxes and folder trees, and of messages."""

    user: str
    mailboxes: int
    messages: int


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """A check of a node's index of GUIDs and mailbox counters against its messages, by the kinds of `replicator check`.

    `mailboxes`: with folder trees; `rows`: of both projections. `damage`: `by_guid` counts wrong rows of the index,
    which `index` divides by what is wrong (`missing`, `extra`, `different`); `chain` counts mailboxes with a wrong
    counter. `unreadable`: rows that the node could not read, by table; if there are any, an absence proves nothing.
    """

    node: str
    mailboxes: int
    rows: int
    damage: Mapping[str, int]
    index: Mapping[str, int]
    unreadable: Mapping[str, int]

    @property
    def is_clean(self) -> bool:
        """True if nothing is wrong."""
        return not sum(self.damage.values()) and not sum(self.unreadable.values())


@dataclass(frozen=True, slots=True)
class Summary:
    """All counts of an audit.

    `relations`: mailboxes that are `equal`, `behind`, `forked`, `damaged`; `trees`: folder trees.

    `kinds`: messages that differ by kind (`missing`, `expunged`, `uid_conflict`, `flags_differ`, `damage`,
    `only_modseq`); a message may be of several kinds, `differing` counts it once. `worst`: users with most differences,
    the worst first. `plan`: mailboxes and trees that can be made equal, by the node that is to join their branches.
    """

    cluster: str
    nodes: tuple[NodeSummary, ...]
    pairs: tuple[PairSummary, ...]
    mailboxes: int
    relations: Mapping[str, int]
    trees: Mapping[str, int]
    uidvalidity_differs: int
    only_on_some: int
    differing: int
    kinds: Mapping[str, int]
    worst: tuple[UserSummary, ...]
    plan: Mapping[str, int]

    @property
    def is_clean(self) -> bool:
        """True if all nodes show the same, and each of them is sound."""
        whole = all(not node.unreadable and not sum(node.index.values()) for node in self.nodes)
        unequal = sum(
            count for found in (self.relations, self.trees) for name, count in found.items() if name != "equal"
        )
        return whole and not unequal

    def to_json(self) -> bytes:
        """Return the JSON document."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"
