"""A user's folders at this node as dsync tells them, and their names."""

from __future__ import annotations

from collections.abc import Iterator

from replicator.dsync.rules.moves import Name
from replicator.dsync.rules.tree import Tree, name_hash
from replicator.dsync.wire.items import Deletions, TreeNode
from replicator.mail.last_changes import TreeChanges
from replicator.mail.mailstore import SEPARATOR

ESCAPED_SEPARATOR = "%2f"
"""A separator within a level of a name, which Dovecot allows where its own separator is another one."""


def levels_of(name: str) -> Name:
    """Return the levels of a folder's name."""
    return tuple(level.replace(ESCAPED_SEPARATOR, SEPARATOR) for level in name.split(SEPARATOR))


def name_of(levels: Name) -> str:
    """Return the folder's name that has these levels."""
    return SEPARATOR.join(level.replace(SEPARATOR, ESCAPED_SEPARATOR) for level in levels)


def tree_of(changes: TreeChanges) -> Tree:
    """Return a user's folders and subscriptions as dsync tells them."""
    living = {one.name: one for one in changes.folders if not one.deleted}
    subscriptions = {one.name: one for one in changes.subscriptions}
    nodes = dict[Name, TreeNode]()
    for name in living.keys() | {name for name, one in subscriptions.items() if one.subscribed}:
        folder, subscription = living.get(name), subscriptions.get(name)
        levels = levels_of(name)
        nodes[levels] = TreeNode(
            levels,
            folder is not None,
            None if folder is None else folder.guid,
            0 if folder is None else folder.uidvalidity,
            1 if folder is None else folder.uidnext,
            0 if folder is None else folder.changed_ms // 1000,
            subscription is not None and subscription.subscribed,
            0 if subscription is None else subscription.changed_ms // 1000,
        )
    for name in living:
        for levels in _above(levels_of(name)):
            nodes.setdefault(levels, TreeNode(levels))
    guids = {one.guid for one in living.values()}  # a folder may have got that of one that was deleted before
    deleted = [one for one in changes.folders if one.deleted and one.guid not in guids]
    return Tree(
        nodes,
        Deletions(
            SEPARATOR,
            {one.guid: one.changed_ms // 1000 for one in deleted},
            {_hash_of(one.name): one.changed_ms // 1000 for one in deleted if levels_of(one.name) not in nodes},
            {_hash_of(one.name): one.changed_ms // 1000 for one in subscriptions.values() if not one.subscribed},
        ),
    )


def _above(levels: Name) -> Iterator[Name]:
    return (levels[:length] for length in range(1, len(levels)))


def _hash_of(name: str) -> bytes:
    return name_hash(levels_of(name), SEPARATOR)
