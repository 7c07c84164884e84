"""Which folders a sync is about, as the master's options say: the others are neither told nor changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from replicator.dsync.errors import DsyncError
from replicator.dsync.rules.tree import Tree
from replicator.dsync.wire.items import Handshake, TreeNode

PATTERNS_MAX = 100
WILDCARDS_MAX = 8  # in a pattern: each can try all lengths


def check_options(wish: Handshake) -> None:
    """Raise DsyncError if the master asks for what this side cannot do."""
    if wish.filters:
        raise DsyncError("this server syncs all mails of a folder: leave out the options -t, -e, -I, -S and -O")
    patterns = wish.exclude_mailboxes
    if any(pattern.startswith("\\") for pattern in patterns):
        raise DsyncError("this server excludes folders by their names only (-x NAME), not by their uses")
    if len(patterns) > PATTERNS_MAX or any(sum(map(one.count, "*?")) > WILDCARDS_MAX for one in patterns):
        raise DsyncError("so many names and wildcards to exclude are too much for this server")


def selected(tree: Tree, wish: Handshake, separator: str) -> Tree:
    """Return the tree with those folders only. `separator`: the master's, by which its options write names."""
    conditions = [*_conditions(wish, separator)]
    if not conditions:
        return tree
    nodes = {name: node for name, node in tree.nodes.items() if all(one(node) for one in conditions)}
    return replace(tree, nodes=nodes)


def _conditions(wish: Handshake, separator: str) -> Sequence[Callable[[TreeNode], bool]]:
    found: list[Callable[[TreeNode], bool]] = []
    if wish.sync_box:
        found.append(lambda node: separator.join(node.name) == wish.sync_box)
    if wish.sync_box_guid:
        found.append(lambda node: node.mailbox_id is not None and node.mailbox_id.hex() == wish.sync_box_guid)
    if wish.namespaces is not None:
        prefixes = wish.namespaces.split("\n")
        found.append(lambda node: any((separator.join(node.name) + separator).startswith(one) for one in prefixes))
    if wish.exclude_mailboxes:
        excluded = re.compile("|".join(map(_expression, wish.exclude_mailboxes)))
        found.append(lambda node: excluded.fullmatch(separator.join(node.name)) is None)
    return found


def _expression(pattern: str) -> str:
    """Return a regular expression for a pattern, in which `*` is any text and `?` any character."""
    return "".join({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in pattern)
