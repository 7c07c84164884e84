"""Charts as inline SVG. Colours come from the page's style by class, so that they follow light, dark and paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from spark.report.markup import element

SLIVER = 0.8
"""Percent of a bar's length that any non-zero value gets, so that it is visible."""

_CELL, _GAP, _LABEL = 12, 1, 130
_NAME_SHOWN = 18


def bar(value: int, most: int) -> Element:
    """Draw a value as a share of the largest.

    Its number stands beside it, so the drawing is hidden from screen readers.
    """
    width = max(SLIVER, 100 * value / most) if value else 0
    filled = element("rect", class_="fill", width=f"{width:.2f}", height="8")
    return _stretched("bar", element("rect", class_="rail", width="100", height="8"), filled, aria_hidden="true")


def parts(counts: Mapping[str, int], says: str) -> Element:
    """Draw one bar divided in proportion to the counts; each part has the class `is-NAME`.

    `says`: the same in words.
    """
    total = sum(counts.values())
    widths = {name: max(SLIVER, 100 * count / total) for name, count in counts.items() if count}
    scale, left = 100 / (sum(widths.values()) or 1), 0.0
    drawn = []
    for name, width in widths.items():
        drawn.append(element("rect", class_=f"is-{name}", x=f"{left:.2f}", width=f"{width * scale:.2f}", height="8"))
        left += width * scale
    rail = element("rect", class_="rail", width="100", height="8")
    return _stretched("parts", rail, *drawn, role="img", aria_label=says)


def heat_map(names: Sequence[str], cells: Mapping[tuple[int, int], tuple[str, str]], says: str) -> Element:
    """Draw a square for each pair of names. `cells`: its class and its text, by row and column.

    `says`: all in words.
    """
    side = _LABEL + len(names) * _CELL
    labels = [label for place, name in enumerate(names) for label in _labels(place, name)]
    drawn = [
        element(
            "rect",
            element("title", what),
            class_=level,
            x=str(_LABEL + column * _CELL),
            y=str(_LABEL + row * _CELL),
            width=str(_CELL - _GAP),
            height=str(_CELL - _GAP),
        )
        for (row, column), (level, what) in cells.items()
    ]
    size = {"viewBox": f"0 0 {side} {side}", "width": str(side), "height": str(side)}
    return element("svg", *labels, *drawn, class_="heat", role="img", aria_label=says, **size)


def _labels(place: int, name: str) -> tuple[Element, Element]:
    """Return the labels of a name's row and of its column; the column's is read from below."""
    shown = name if len(name) <= _NAME_SHOWN else name[: _NAME_SHOWN - 1] + "…"
    middle, end = str(_LABEL + place * _CELL + 9), str(_LABEL - 5)
    row = element("text", shown, x=end, y=middle, text_anchor="end")
    return row, element("text", shown, transform=f"translate({middle} {end}) rotate(-90)")


def _stretched(kind: str, *drawn: Element, **attributes: str) -> Element:
    """Return a drawing that is as wide as the room it has."""
    return element("svg", *drawn, class_=kind, viewBox="0 0 100 8", preserveAspectRatio="none", **attributes)
