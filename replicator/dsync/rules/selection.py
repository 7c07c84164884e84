"""Choice of the folders that a sync is about, as the master's options say: the others are neither told nor changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from replicator.dsync.errors import DsyncError
from replicator.dsync.rules.tree import Tree
from replicator.dsync.wire.items import Handshake, TreeNode

PATTERNS_MAX = 100
PATTERN_CHARACTERS_MAX = 1_000  # each is compared with every folder's name


def check_options(wish: Handshake) -> None:
    """Raise DsyncError if the master asks for what this side cannot do."""
    if wish.filters:
        raise DsyncError("this server syncs all mails of a folder: leave out the options -t, -I, -O and -a")
    patterns = wish.exclude_mailboxes
    if any(pattern.startswith("\\") for pattern in patterns):
        raise DsyncError("this server excludes folders by their names only (-x NAME), not by their uses")
    if len(patterns) > PATTERNS_MAX or any(len(pattern) > PATTERN_CHARACTERS_MAX for pattern in patterns):
        limits = f"{PATTERNS_MAX} names, each of {PATTERN_CHARACTERS_MAX} characters"
        raise DsyncError(f"this server excludes at most {limits} (-x)")


def selected(tree: Tree, wish: Handshake, separator: str) -> Tree:
    """Return the tree with those folders only; the others are hidden.

    `separator`: the master's, by which its options write names.
    """
    conditions = [*_conditions(wish, separator)]
    if not conditions:
        return tree
    nodes = {name: node for name, node in tree.nodes.items() if all(one(node) for one in conditions)}
    return replace(tree, nodes=nodes, hidden=tree.nodes.keys() - nodes.keys())


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
        found.append(lambda node: not any(fits(separator.join(node.name), one) for one in wish.exclude_mailboxes))
    return found


def fits(text: str, pattern: str) -> bool:
    """Return True if the whole text fits the pattern, in which `*` is any text and `?` any character.

    Only the last `*` ever grows, so this takes at most as many steps as the product of both lengths.
    """
    at = in_pattern = 0
    star, grown_to = -1, 0  # where the last `*` is, and where its text ends
    while at < len(text):
        if in_pattern < len(pattern) and pattern[in_pattern] == "*":
            star, grown_to = in_pattern, at
            in_pattern += 1
        elif in_pattern < len(pattern) and pattern[in_pattern] in ("?", text[at]):
            at, in_pattern = at + 1, in_pattern + 1
        elif star >= 0:
            grown_to += 1
            at, in_pattern = grown_to, star + 1
        else:
            return False
    return not pattern[in_pattern:].strip("*")
