"""What an audit has found, as counts: what `summary.json` says, what is printed, and what the report draws."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One node's inventory. `lag_entries`: how many entries its log lacked that another node's had.

    `behind`: mailboxes of which another node shows more; `missing`, `expunged`: messages that it does not show and
    another node does, and has never seen, or has removed. `index`: wrong rows of its index of GUIDs by what is wrong
    (`missing`, `extra`, `different`). `unreadable`: rows that it could not read.
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
    """In how many mailboxes two nodes do not show the same."""

    one: str
    other: str
    unequal: int


@dataclass(frozen=True, slots=True)
class UserSummary:
    """A user with differences: mailboxes and folder trees, and messages."""

    user: str
    mailboxes: int
    messages: int


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """A node's index of GUIDs, and what its mailboxes count, against its messages, by the kinds of `replicator check`.

    `mailboxes`: and folder trees; `rows`: of both projections. `damage`: `by_guid`, wrong rows of the index, which
    `index` tells apart by what is wrong (`missing`, `extra`, `different`); `chain`, mailboxes that count other than
    there is. `unreadable`: rows that the node could not read, by table; if there are some, an absence proves nothing.
    """

    node: str
    mailboxes: int
    rows: int
    damage: Mapping[str, int]
    index: Mapping[str, int]
    unreadable: Mapping[str, int]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not sum(self.damage.values()) and not sum(self.unreadable.values())


@dataclass(frozen=True, slots=True)
class Summary:
    """`relations`: mailboxes that are `equal`, `behind`, `forked`, `damaged`; `trees`: the same of folder trees.

    `kinds`: messages that differ by kind (`missing`, `expunged`, `uid_conflict`, `flags_differ`, `damage`,
    `only_modseq`); one may be of several, `differing` counts it once. `worst`: users with most differences, the worst
    first. `plan`: mailboxes and trees that can be made equal, by the node that is to join their branches.
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
        """Whether all nodes show the same, and each of them is sound."""
        whole = all(not node.unreadable and not sum(node.index.values()) for node in self.nodes)
        unequal = sum(
            count for found in (self.relations, self.trees) for name, count in found.items() if name != "equal"
        )
        return whole and not unequal

    def to_json(self) -> bytes:
        """The document."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"
