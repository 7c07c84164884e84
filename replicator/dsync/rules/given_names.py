"""Names that syncs have given to folders, and when users had given them: by that, the later of two names counts.

Each side notes when a sync renames or creates a folder there, as if a user had done it then. A name that a user gives
the folder at the other side at that moment, or by a clock that is behind, would seem older.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from replicator.dsync.rules.moves import Name
from replicator.dsync.rules.tree import Tree


@dataclass(frozen=True, slots=True)
class GivenName:
    """A name that a sync gave a folder at one side, or at both.

    `here_s`: the time of it that this side's tree tells. `at_s`: when a user gave it, at whichever side.
    """

    name: Name
    here_s: int
    at_s: int


def as_users_named(own: Tree, peer: Tree, given: Mapping[bytes, GivenName]) -> tuple[Tree, Tree]:
    """Return both trees, with names that a sync has given told as given when a user did."""
    return _as_users_named(own, given, is_own=True), _as_users_named(peer, given, is_own=False)


def _as_users_named(tree: Tree, given: Mapping[bytes, GivenName], *, is_own: bool) -> Tree:
    nodes = {
        name: replace(node, renamed_s=one.at_s)
        for name, node in tree.nodes.items()
        if node.mailbox_id is not None
        and (one := given.get(node.mailbox_id)) is not None
        and one.name == name
        and (not is_own or one.here_s == node.renamed_s)
    }
    return replace(tree, nodes={**tree.nodes, **nodes})


def given_names(before: Tree, own: Tree, peer: Tree, known: Mapping[bytes, GivenName]) -> dict[bytes, GivenName]:
    """Return the names that a sync has given here, those that the peer is to take over, and the latest common ones.

    Of a name that both sides have, another one given within the same second is the later one. Only a name that was
    given as late as any can be followed by one of its own second, so the others are not noted.
    `before`: this side's tree before the sync. `known`: names that earlier syncs have given.
    """
    theirs, ours = peer.boxes(), {one: node.name for one, node in before.boxes().items()}
    by_users = _as_users_named(own, known, is_own=True)
    latest_s = max((node.renamed_s for tree in (own, peer) for node in tree.nodes.values()), default=0)
    found = dict[bytes, GivenName]()
    for one, node in own.boxes().items():
        other = theirs.get(one)
        if other is None or other.name != node.name:
            found[one] = GivenName(node.name, node.renamed_s, by_users.renamed_s(node.name))
            continue
        at_s = by_users.renamed_s(node.name) if ours.get(one) == node.name else peer.renamed_s(node.name)
        if ours.get(one) != node.name or at_s == latest_s:
            found[one] = GivenName(node.name, node.renamed_s, at_s - 1 if at_s == latest_s else at_s)
    return found
