"""Names of folders that both sides have: another one that is given in the same second is later."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from replicator.dsync.rules.given_names import GivenName, as_users_named, given_names
from replicator.dsync.rules.moves import Name
from replicator.dsync.rules.tree import Rename, Tree, merging_steps
from replicator.dsync.wire.items import Deletions, TreeNode

WORK, OTHER = b"\x0a" * 16, b"\x0b" * 16


def tree(*folders: tuple[str, bytes, int]) -> Tree:
    """Return a tree of folders with these names, mailboxes, and times at which they were named, in seconds."""
    nodes = [TreeNode((name,), mailbox_id=one, uidvalidity=7, renamed_s=at_s) for name, one, at_s in folders]
    return Tree({node.name: node for node in nodes}, Deletions())


def renames(own: Tree, peer: Tree, given: Mapping[bytes, GivenName]) -> list[tuple[Name, Name]]:
    steps = merging_steps(*as_users_named(own, peer, given))
    return [(step.old, step.new) for step in steps if isinstance(step, Rename)]


@pytest.mark.parametrize("new", ["A", "Z"])
@pytest.mark.parametrize("before", [tree(("Work", WORK, 9)), tree(("Old", WORK, 5))], ids=["known", "taken over"])
def test_a_name_given_in_the_same_second_is_later(before: Tree, new: str) -> None:
    both, renamed = tree(("Work", WORK, 9)), tree((new, WORK, 9))
    given = given_names(before, both, both, {})
    assert renames(both, renamed, given) == [(("Work",), (new,))]
    assert renames(renamed, both, given) == []
    assert renames(both, renamed, given_names(both, both, both, given) | given) == [(("Work",), (new,))]


def test_a_name_given_here_again_is_no_longer_that_of_the_sync() -> None:
    both = tree(("Work", WORK, 9))
    given = given_names(both, both, both, {})
    assert renames(tree(("Work", WORK, 10)), tree(("Z", WORK, 9)), given) == []


def test_names_that_none_can_follow_in_their_second_are_not_noted() -> None:
    both = tree(("Work", WORK, 8), ("Other", OTHER, 9))
    assert given_names(both, both, both, {}) == {OTHER: GivenName(("Other",), 9, 8)}
