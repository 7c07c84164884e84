"""Summaries of audits, and a reader for the pages of reports."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import combinations, count
from xml.etree import ElementTree as ET

from spark.report.summary import NodeSummary, PairSummary, Summary, UserSummary
from spark.report.terms import KINDS, RELATIONS

TAKEN_MS = 1_795_335_600_000


def clean(nodes: int, mailboxes: int = 1502) -> Summary:
    names = [f"dc{number}" for number in range(1, nodes + 1)]
    rows = tuple(NodeSummary(name, TAKEN_MS, mailboxes, 90_210, 0, 0, 0, 0, 0, {}) for name in names)
    pairs = tuple(PairSummary(one, other, 0) for one, other in combinations(names, 2))
    equal = {"equal": mailboxes} if mailboxes else {}
    return Summary("mail", rows, pairs, mailboxes, equal, equal, 0, 0, 0, {}, (), {})


def differing(nodes: int) -> Summary:
    """Return a summary in which no number occurs twice, so that a number in the page has one source."""
    numbers = count(11_003, 7)

    def some(*names: str) -> dict[str, int]:
        return {name: next(numbers) for name in names}

    names = [f"dc{number}" for number in range(1, nodes + 1)]
    counted = [field.name for field in fields(NodeSummary) if field.name not in {"node", "taken_ms", "index"}]
    rows = tuple(
        NodeSummary(name, TAKEN_MS - 61_000 * place, **some(*counted), index=some("missing", "extra", "different"))
        for place, name in enumerate(names)
    )
    pairs = tuple(PairSummary(one, other, next(numbers)) for one, other in combinations(names, 2))
    relations, trees = some(*RELATIONS), some(*RELATIONS)
    users = tuple(UserSummary(f"user{number}", next(numbers), next(numbers)) for number in range(3))
    sums = some("uidvalidity_differs", "only_on_some", "differing")
    mailboxes = sum(relations.values())
    return Summary(
        "mail", rows, pairs, mailboxes, relations, trees, **sums, kinds=some(*KINDS), worst=users, plan=some(*names)
    )


def parsed(page: str) -> ET.Element:
    page.encode()
    return ET.fromstring(page)


def text_of(page: str) -> str:
    """Return the text that every reader of a page gets, which excludes the text in drawings."""
    body = parsed(page).find("body")
    assert body is not None
    for parent in list(body.iter()):
        for drawing in parent.findall("svg"):
            parent.remove(drawing)
    return " ".join(body.itertext())


def damaged_nodes(unreadable: int, index: int) -> tuple[NodeSummary, ...]:
    one, *rest = clean(3).nodes
    return (replace(one, unreadable=unreadable, index={"missing": index} if index else {}), *rest)
