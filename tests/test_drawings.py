"""The drawings in documents: read aloud, light and dark, and with nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import pytest

DOCS = Path(__file__).parents[1] / "docs"
DRAWINGS = sorted((DOCS / "drawings").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
ALLOWED = {"svg", "title", "desc", "style", "defs", "marker", "g", "rect", "circle", "ellipse", "path", "text"}

each = pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.name)


def root_of(drawing: Path) -> Element:
    return fromstring(drawing.read_text("utf-8"))


@each
def test_drawing_is_told_in_words(drawing: Path) -> None:
    root = root_of(drawing)
    named = {element.get("id"): element.text for element in root.iter()}
    assert root.get("role") == "img"
    for name in (root.get("aria-labelledby") or "").split():
        assert named[name]
    told = f"{named['title']} {named['desc']}"
    nodes = set(re.findall(r"\bdc\d\b", " ".join(text.text or "" for text in root.iter(f"{SVG}text"))))
    assert nodes
    assert nodes <= set(re.findall(r"\bdc\d\b", told))


@each
def test_drawing_has_shapes_and_no_more(drawing: Path) -> None:
    root = root_of(drawing)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= ALLOWED
    text = drawing.read_text("utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "//" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


@each
def test_each_class_has_a_colour_in_light_and_in_dark(drawing: Path) -> None:
    root = root_of(drawing)
    light, _, dark = (root.findtext(f"{SVG}style") or "").partition("@media (prefers-color-scheme: dark)")
    used = {name for element in root.iter() for name in (element.get("class") or "").split()}
    coloured = set(
        re.findall(r"\.([\w-]+)", re.sub(r"\{[^}]*\}", "{}", re.sub(r"[^\n]*\{(?![^}]*#)[^}]*\}", "", light)))
    )
    assert used == set(re.findall(r"^ +\.([\w-]+)", light, re.MULTILINE))
    assert coloured <= set(re.findall(r"\.([\w-]+)", re.sub(r"\{[^{}]*\}", "{}", dark)))


def test_each_drawing_is_shown_with_words() -> None:
    shown = set()
    for page in DOCS.glob("*.md"):
        for words, name in re.findall(r"!\[([^\]]*)\]\(drawings/([^)]+)\)", page.read_text("utf-8")):
            assert len(words) > 20
            shown.add(name)
    assert shown == {drawing.name for drawing in DRAWINGS}
    assert DRAWINGS
