"""Agreement of each two nodes: a table of all pairs as long as it is readable, else a heat map and a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element

from spark.report.charts import heat_map
from spark.report.markup import count, element, number, share
from spark.report.summary import PairSummary, Summary
from spark.report.tables import Measure, scrolling, table
from spark.report.verdict import mailboxes

TABLE_MAX = 10
"""Nodes up to which a table with numbers is shown."""
LISTED_MAX = 15
"""Pairs listed below a heat map; the others can be unfolded."""

_LEVELS = ("all alike", "up to 0.1 % differ", "up to 1 %", "up to 10 %", "more than 10 %", "not compared")
_UNKNOWN = len(_LEVELS) - 1


def agreement(summary: Summary) -> Iterator[Element]:
    """Yield the elements of the section."""
    if len(summary.nodes) < 2:
        yield element("p", "This section needs at least two nodes.")
        return
    differing = sorted((pair for pair in summary.pairs if pair.unequal), key=lambda pair: -pair.unequal)
    yield element("p", _in_words(summary, differing))
    if len(summary.nodes) <= TABLE_MAX:
        yield _matrix(summary)
        yield _legend()
    else:
        yield _map(summary, differing)
        yield _legend()
        yield from _lists(summary, differing)


def _in_words(summary: Summary, differing: list[PairSummary]) -> str:
    alike = len(summary.pairs) - len(differing)
    told = f"Pairs of nodes that show all mailboxes alike: {number(alike)} of {number(len(summary.pairs))}."
    if not differing:
        return told
    worst = differing[0]
    return f"{told} The two nodes that differ most: {worst.one} and {worst.other}, in {mailboxes(worst.unequal)}."


def _level(summary: Summary, unequal: int | None) -> int:
    """Return the index in `_LEVELS`."""
    if unequal is None:
        return _UNKNOWN
    bounds = (0, summary.mailboxes // 1000, summary.mailboxes // 100, summary.mailboxes // 10)
    return next((level for level, bound in enumerate(bounds) if unequal <= bound), len(bounds))


def _by_names(pairs: Iterable[PairSummary]) -> dict[frozenset[str], int]:
    return {frozenset((pair.one, pair.other)): pair.unequal for pair in pairs}


def _matrix(summary: Summary) -> Element:
    names, unequal = [node.node for node in summary.nodes], _by_names(summary.pairs)
    head = element("tr", element("td"), *(element("th", name, scope="col") for name in names))
    rows = []
    for one in names:
        found = (None if one == other else _shown(summary, unequal.get(frozenset((one, other)))) for other in names)
        cells = (element("td", "", class_="self") if cell is None else cell for cell in found)
        rows.append(element("tr", element("th", one, scope="row"), *cells))
    caption = "Share of mailboxes that two nodes show alike, and number of those that differ"
    table = scrolling(caption, element("caption", caption), element("thead", head), element("tbody", *rows))
    table.set("class", "scroll matrix")
    return table


def _shown(summary: Summary, unequal: int | None) -> Element:
    level = f"level{_level(summary, unequal)}"
    if unequal is None:
        return element("td", _LEVELS[_UNKNOWN], class_=level)
    said = f"{number(unequal)} {'differs' if unequal == 1 else 'differ'}"
    return element("td", element("b", _alike(summary, unequal)), element("small", said), class_=level)


def _alike(summary: Summary, unequal: int) -> str:
    return share(summary.mailboxes - unequal, summary.mailboxes)


def _map(summary: Summary, differing: list[PairSummary]) -> Element:
    names, unequal = [node.node for node in summary.nodes], _by_names(summary.pairs)
    cells = {}
    for row, one in enumerate(names):
        for column, other in enumerate(names):
            if row != column:
                found = unequal.get(frozenset((one, other)))
                said = f"{one} and {other}: " + ("not compared" if found is None else f"{number(found)} different")
                cells[row, column] = f"level{_level(summary, found)}", said
    drawn = heat_map(names, cells, f"Heat map of all pairs. {_in_words(summary, differing)}")
    return element("div", drawn, class_="scroll", role="region", tabindex="0", aria_label="Heat map of all pairs")


def _lists(summary: Summary, differing: list[PairSummary]) -> Iterator[Element]:
    if differing:
        yield _list(summary, "Pairs that agree least", differing[:LISTED_MAX])
    if rest := differing[LISTED_MAX:]:
        named = f"The other {count(len(rest), 'pair')} with differences"
        yield element("details", element("summary", named), _list(summary, named, rest))


def _list(summary: Summary, caption: str, pairs: Iterable[PairSummary]) -> Element:
    rows = ((pair.one, pair.other, Measure(0, _alike(summary, pair.unequal)), pair.unequal) for pair in pairs)
    return table(caption, ("Node", "and node", "alike", "mailboxes that differ"), rows)


def _legend() -> Element:
    items = (element("li", element("span", class_=f"key level{level}"), name) for level, name in enumerate(_LEVELS))
    return element("ul", *items, class_="legend", aria_label="Colours")
