"""An audit's findings as one self-contained page of HTML: no script, no font, no external address.

The page is a skeleton with the style (`skeleton.html`), and one section for each question of an operator, in the
order in which they are asked: whether something is wrong, where, of what kind, for which users, and which nodes repair
it. Each chart is a drawing of numbers that stand beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from html import escape
from importlib.resources import files
from string import Template
from typing import Final
from xml.etree.ElementTree import Element

from spark.report.agreement import agreement
from spark.report.charts import bar, parts
from spark.report.markup import count, element, markup, moment, number, share, span, visible
from spark.report.summary import NodeSummary, Summary
from spark.report.tables import Measure, table
from spark.report.terms import KINDS, RELATIONS, UNKNOWN, Term
from spark.report.verdict import mailboxes, sentence, steps, unequal

_INDEX: Final = ("missing", "extra", "different")
_CODE = re.compile(r"`([^`]*)`")


def html(summary: Summary) -> str:
    """Return the page, to be written as UTF-8. Names in the summary may hold any characters."""
    skeleton = Template(files("spark.report").joinpath("skeleton.html").read_text("utf-8"))
    page = element("main", _verdict(summary), *_sections(summary))
    return skeleton.substitute(title=escape(visible(f"Audit of {summary.cluster}")), page=markup(page))


def _sections(summary: Summary) -> Iterator[Element]:
    told: tuple[tuple[str, Callable[[Summary], Iterable[Element]]], ...] = (
        ("Agreement of nodes", agreement),
        ("Mailboxes and folder trees", _relations),
        ("Differences by kind", _kinds),
        ("Lag", _lag if summary.nodes else _no_nodes),
        ("Each node", _nodes if summary.nodes else _no_nodes),
        ("Users with the most differences", _users),
        ("The plan", _plan),
    )
    for heading, section in told:
        yield element("section", element("h2", heading), *section(summary))


def _verdict(summary: Summary) -> Element:
    mood = "good" if summary.is_clean and summary.nodes else "bad"
    return element(
        "header",
        element("p", f"Audit of cluster {summary.cluster}", class_="of"),
        element("h1", sentence(summary), class_=mood),
        element("ul", *(element("li", *_with_code(step)) for step in steps(summary)), class_="steps"),
        element("p", _when(summary), class_="when"),
    )


def _when(summary: Summary) -> str:
    taken = sorted(node.taken_ms for node in summary.nodes)
    if not taken:
        return ""
    late = "" if summary.is_clean else " Changes between these times may be the only reason for a difference."
    said = f"Found in {count(len(taken), 'inventory', 'inventories')}, "
    if len(taken) == 1:
        return f"{said}taken {moment(taken[0])}."
    return f"{said}taken from {moment(taken[0])} to {moment(taken[-1])}.{late}"


def _relations(summary: Summary) -> Iterator[Element]:
    kinds = (("mailboxes", summary.relations), ("folder trees", summary.trees))
    for name, counts in kinds:
        known = {relation: counts.get(relation, 0) for relation in RELATIONS}
        says = ", ".join(f"{number(some)} {relation}" for relation, some in known.items())
        yield element("p", f"{number(sum(counts.values()))} {name}: {says}", class_="caption")
        yield parts(known, f"{name}: {says}")
    items = []
    for relation in dict.fromkeys((*RELATIONS, *summary.relations, *summary.trees)):
        some, trees = (counts.get(relation, 0) for _, counts in kinds)
        said = f"{mailboxes(some)} ({share(some, summary.mailboxes) if summary.mailboxes else '0 %'})"
        key = element("span", class_=f"key is-{relation}" if relation in RELATIONS else "key")
        items.append(
            _term(relation, RELATIONS, [element("span", said), element("span", count(trees, "folder tree"))], key)
        )
    yield element("ul", *items, class_="terms")
    yield element(
        "p",
        "A folder tree is a user's folders, subscriptions and annotations. Mailboxes that only some nodes have:"
        f" {number(summary.only_on_some)}. Mailboxes whose UIDVALIDITY differs:"
        f" {number(summary.uidvalidity_differs)}; a mail client that sees another UIDVALIDITY drops its cache of"
        " the folder and fetches everything again.",
    )


def _kinds(summary: Summary) -> Iterator[Element]:
    differing = f"{count(summary.differing, 'message')} {'is' if summary.differing == 1 else 'are'}"
    yield element(
        "p",
        f"{differing} not the same everywhere. A message may count under several kinds.",
    )
    counts = {kind: summary.kinds.get(kind, 0) for kind in dict.fromkeys((*KINDS, *summary.kinds))}
    most = max(counts.values())
    items = (_term(kind, KINDS, [bar(some, most), element("b", number(some))]) for kind, some in counts.items())
    yield element("ul", *items, class_="terms bars")


def _term(name: str, terms: Mapping[str, Term], figures: Iterable[Element], *before: Element) -> Element:
    term = terms.get(name, UNKNOWN)
    meaning = element("p", *_with_code(term.meaning), element("i", f" Mail clients: {term.clients}"))
    head = element("div", *before, element("strong", name), *figures, class_="head")
    return element("li", head, meaning)


def _lag(summary: Summary) -> Iterator[Element]:
    newest = max((node.taken_ms for node in summary.nodes), default=0)
    yield element(
        "p",
        "A node's log consists of entries, one for each change. Entries lacking: entries that another node's"
        " log had and this node's log did not have. They arrive by themselves while links are up; if there are"
        " many, check the node's links. Older: how long before the newest inventory this one was taken; an"
        " older inventory makes its node seem to lag.",
    )
    ages = ((node, newest - node.taken_ms) for node in summary.nodes)
    rows = ((node.node, node.lag_entries, node.behind, Measure(age, span(age))) for node, age in ages)
    yield table("Lag of each node", ("Node", "entries lacking", "mailboxes behind", "older"), rows, bars=True)


def _nodes(summary: Summary) -> Iterator[Element]:
    yield element(
        "p",
        *_with_code(
            "Missing, expunged: messages that another node shows, and that this one has never seen or has"
            " removed. Unreadable: rows left out of the node's inventory because their values are invalid."
            " Index: wrong rows of the index by which a node finds messages. Unreadable and wrong rows are"
            " damage; `replicator check --repair` repairs it at that node."
        ),
    )
    headings = ("mailboxes", "messages", "missing", "expunged", "unreadable")
    indexes = (f"index: {what}" for what in _wrongs(summary))
    yield table(
        "What each node shows", ("Node", *headings, *indexes, "taken"), map(partial(_row, summary), summary.nodes)
    )


def _no_nodes(_: Summary) -> Iterator[Element]:
    yield element("p", "There are no nodes.")


def _row(summary: Summary, node: NodeSummary) -> tuple[str | int, ...]:
    index = (node.index.get(what, 0) for what in _wrongs(summary))
    counted = (node.mailboxes, node.messages, node.missing, node.expunged, node.unreadable)
    return (node.node, *counted, *index, moment(node.taken_ms))


def _wrongs(summary: Summary) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_INDEX, *(what for node in summary.nodes for what in node.index))))


def _users(summary: Summary) -> Iterator[Element]:
    if not summary.worst:
        yield element("p", "No user has any differences.")
        return
    theirs = sum(user.messages for user in summary.worst)
    which = f"{count(len(summary.worst), 'user')}, those with the most differences first, with {number(theirs)}"
    yield element("p", f"{which} of the {count(summary.differing, 'message')} that differ.")
    rows = ((user.user, user.mailboxes, user.messages) for user in summary.worst)
    yield table("Users", ("User", "mailboxes and folder trees", "messages"), rows, bars=True)


def _plan(summary: Summary) -> Iterator[Element]:
    total = sum(summary.plan.values())
    if not total:
        yield element("p", "The plan is empty.")
        return
    unjoined = unequal(summary.relations) + unequal(summary.trees) - total
    left = (
        f" {number(unjoined)} more are not in the plan, because they are damaged or no node knows their whole state."
        if unjoined > 0
        else ""
    )
    said = (
        f"{number(total)} mailboxes and folder trees are to be made equal, each by its master, the node that"
        f" numbers its changes. `replicator apply DIR` asks the masters to do this.{left}"
    )
    yield element("p", *_with_code(said))
    rows = sorted(summary.plan.items(), key=lambda one: (-one[1], one[0]))
    yield table("Plan by master", ("Master", "mailboxes and folder trees"), rows, bars=True)


def _with_code(text: str) -> Iterator[Element | str]:
    """Yield the text between backquotes as code. Only for fixed texts: names may hold backquotes."""
    for place, part in enumerate(_CODE.split(text)):
        yield element("code", part) if place % 2 else part
