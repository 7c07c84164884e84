"""Tables: one row per thing, its name first. A wide table scrolls sideways while the names stay in view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias
from xml.etree.ElementTree import Element

from spark.report.charts import bar
from spark.report.markup import element, number


class Measure(NamedTuple):
    """A number that is not written with separators."""

    value: int
    shown: str


Cell: TypeAlias = int | str | Measure


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, bars: bool = False) -> Element:
    """Return a table of at least one row. `bars`: below each number, its share of the largest in its column."""
    body = [list(row) for row in rows]
    most = [max((_value(cell) for cell in column), default=0) for column in zip(*body, strict=True)] if bars else []
    return scrolling(
        caption,
        element("caption", caption),
        element("thead", element("tr", *map(_heading, headings, body[0]))),
        element("tbody", *(_row(row, most) for row in body)),
    )


def scrolling(label: str, *children: Element) -> Element:
    """Return a table of these elements that the keyboard can scroll too."""
    return element("div", element("table", *children), class_="scroll", role="region", tabindex="0", aria_label=label)


def _heading(heading: str, below: Cell) -> Element:
    """Return a heading on the same side as the cells below it."""
    return element("th", heading, scope="col", class_="words" if isinstance(below, str) else "number")


def _row(row: Sequence[Cell], most: Sequence[int]) -> Element:
    name, *cells = row
    shown = [_cell(cell, most[place] if most else 0) for place, cell in enumerate(cells, 1)]
    return element("tr", element("th", str(name), scope="row"), *shown)


def _cell(cell: Cell, most: int) -> Element:
    if isinstance(cell, str):
        return element("td", cell, class_="words")
    shown = element("span", cell.shown if isinstance(cell, Measure) else number(cell))
    drawn = [bar(_value(cell), most)] if most else []
    return element("td", shown, *drawn, class_="some" if _value(cell) else "none")


def _value(cell: Cell) -> int:
    if isinstance(cell, Measure):
        return cell.value
    return cell if isinstance(cell, int) else 0
