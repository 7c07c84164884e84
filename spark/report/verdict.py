"""The result of an audit in one sentence, and the steps to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark.report.markup import count, listed, number
from spark.report.summary import NodeSummary, Summary

APPLY, REPAIR = "replicator apply DIR", "replicator check --repair"
INVENTORY, COMPARE = "replicator inventory", "replicator diff"


def sentence(summary: Summary) -> str:
    """Return the verdict in plain words."""
    if not summary.nodes:
        return "No inventory was compared, so nothing is known."
    differ, damage = _differ(summary), _damage(summary)
    if not differ:
        return f"{_same(summary)}{f', but {damage}' if damage else ''}."
    return f"{differ}{f'; and {damage}' if damage else ''}."


def steps(summary: Summary) -> Iterator[str]:
    """Yield the steps to take, in order."""
    if not summary.nodes:
        yield f"Run `{INVENTORY}` at each node, and compare the inventories with `{COMPARE}`."
        return
    if summary.is_clean:
        yield "Nothing needs to be done."
        return
    sick = [node.node for node in summary.nodes if _damaged_rows(node)]
    contradicting = _of(summary, "damaged")
    if contradicting:
        yield (
            f"Run `{REPAIR}` at every node: what nodes show of {contradicting} contradicts what they have seen, and "
            "only the nodes' own logs can tell what is right."
        )
    elif sick:
        yield (
            f"Run `{REPAIR}` at {listed(sick)}, where rows are damaged. Messages in unreadable rows may seem missing"
            " here."
        )
    if joining := _of(summary, "behind", "forked"):
        yield (
            f"Run `{APPLY}` to make {joining} equal; DIR is where this audit wrote its plan. The command leaves"
            " alone what has changed since, and can be run again at any time."
        )
    yield f"Then run `{INVENTORY}` at each node and `{COMPARE}` again: this page describes one moment only."


def unequal(counts: Mapping[str, int]) -> int:
    """Return the number of all relations other than `equal`."""
    return sum(amount for relation, amount in counts.items() if relation != "equal")


def index_rows(node: NodeSummary) -> int:
    """Return the number of wrong rows in its index."""
    return sum(node.index.values())


def _same(summary: Summary) -> str:
    shown = f"the same {mailboxes(summary.mailboxes)}" if summary.mailboxes else "the same: there are no mailboxes yet"
    if len(summary.nodes) == 1:
        return f"There is only node {summary.nodes[0].node}, with {mailboxes(summary.mailboxes)}, to compare"
    return f"{'Both' if len(summary.nodes) == 2 else f'All {len(summary.nodes)}'} nodes show {shown}"


def _differ(summary: Summary) -> str:
    """Return the differences in words; empty if there are none."""
    trees = sum(summary.trees.values())
    found = []
    if some := unequal(summary.relations):
        found.append(f"{number(some)} of {mailboxes(summary.mailboxes)}")
    if some := unequal(summary.trees):
        found.append(f"{number(some)} of {count(trees, 'folder tree')}")
    several = unequal(summary.relations) + unequal(summary.trees) != 1
    between = f"between the {len(summary.nodes)} nodes" if len(summary.nodes) > 1 else "from what the node has seen"
    return f"{' and '.join(found)} {'differ' if several else 'differs'} {between}" if found else ""


def _damage(summary: Summary) -> str:
    """Return the damage in words; empty if each node is sound."""
    unread, wrong = (sum(map(what, summary.nodes)) for what in (lambda node: node.unreadable, index_rows))
    found = [f"{count(unread, 'row')} could not be read"] if unread else []
    if wrong:
        found.append(f"{count(wrong, 'index row')} {'is' if wrong == 1 else 'are'} wrong")
    return " and ".join(found)


def _damaged_rows(node: NodeSummary) -> int:
    return node.unreadable + index_rows(node)


def _of(summary: Summary, *relations: str) -> str:
    """Return the mailboxes and trees of these relations in words; empty if there are none."""
    some, trees = (sum(counts.get(one, 0) for one in relations) for counts in (summary.relations, summary.trees))
    found = [mailboxes(some)] if some else []
    return " and ".join([*found, count(trees, "folder tree")] if trees else found)


def mailboxes(some: int) -> str:
    """Return `1 mailbox`, `1,502 mailboxes`."""
    return count(some, "mailbox", "mailboxes")
