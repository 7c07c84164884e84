"""The report's page: valid, with all numbers of its summary, and safe with any name. No Spark runs here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.report.charts import bar, parts
from spark.report.markup import visible
from spark.report.page import html
from spark.report.summary import PairSummary, Summary, UserSummary
from tests.spark.summaries import clean, differing, parsed, text_of

HOSTILE = "<script>alert('&amp;')</script>\"><img src=x onerror=alert(1)>`$page`\u202e\x00"


def numbers_in(value: object) -> Iterator[int]:
    match value:
        case Mapping():
            for key, inner in value.items():
                if key != "taken_ms":
                    yield from numbers_in(inner)
        case int():
            yield value
        case Sequence() if not isinstance(value, str):
            for inner in value:
                yield from numbers_in(inner)


class ElementRecorder(HTMLParser):
    """Record the elements of a page by the rules of HTML, and assert that their tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, _attrs: object) -> None:
        self.open.append(tag)
        self.seen.append(tag)

    def handle_startendtag(self, tag: str, _attrs: object) -> None:
        assert tag == "meta"
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "summary", [clean(0, 0), clean(1), clean(2, 0), clean(3), differing(1), differing(3), differing(12), differing(60)]
)
def test_page_is_valid_html_and_valid_xml(summary: Summary) -> None:
    page = html(summary)
    reader = ElementRecorder()
    reader.feed(page)
    reader.close()
    assert not reader.open
    assert reader.seen == [one.tag for one in parsed(page).iter()]
    assert reader.seen.count("section") == 7
    assert len(page) < 1_000_000


@pytest.mark.parametrize("nodes", [2, 3, 12, 60])
def test_every_number_of_a_summary_is_in_its_page(nodes: int) -> None:
    summary = differing(nodes)
    shown = set(re.findall(r"\d[\d,]*\d|\d", text_of(html(summary))))
    numbers = list(numbers_in(asdict(summary)))
    assert len(numbers) == len(set(numbers)) > 40
    assert not {f"{number:,}" for number in numbers} - shown


def test_page_tells_times_and_ages_of_inventories() -> None:
    text = text_of(html(differing(3)))
    assert all(
        when in text for when in ("2026-11-22 08:20:00 UTC", "2026-11-22 08:18:59 UTC", "1 min 1 s", "2 min 2 s")
    )


@pytest.mark.parametrize("nodes", [3, 12])
def test_markup_in_names_is_escaped_everywhere(nodes: int) -> None:
    summary = differing(nodes)
    rename = {node.node: f"{node.node}{HOSTILE}" for node in summary.nodes}
    evil = replace(
        summary,
        cluster=f"cluster{HOSTILE}",
        nodes=tuple(replace(node, node=rename[node.node], index={HOSTILE: 1}) for node in summary.nodes),
        pairs=tuple(PairSummary(rename[pair.one], rename[pair.other], pair.unequal) for pair in summary.pairs),
        relations={"equal": 1, "damaged": 0, f"relation{HOSTILE}": 1},
        trees={},  # without damaged trees, the next steps name nodes with damaged rows
        kinds={**summary.kinds, f"kind{HOSTILE}": 1},
        worst=(UserSummary(f"user{HOSTILE}", 1, 1),),
        plan={rename[sid]: some for sid, some in summary.plan.items()},
    )
    page = html(evil)
    root = parsed(page)
    assert not {"script", "img"} & {one.tag for one in root.iter()}
    assert not [key for one in root.iter() for key in one.keys() if key.startswith("on")]  # noqa: SIM118
    title = root.find("head/title")
    assert title is not None
    assert title.text == f"Audit of {visible(evil.cluster)}"
    text = text_of(page)
    for what in ("cluster", "relation", "kind", "user", *summary.plan):
        assert f"{what}{visible(HOSTILE)}" in text
    assert "\u202e" not in page


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=()), min_size=1))
def test_invisible_characters_of_names_are_spelled_out(name: str) -> None:
    page = html(replace(clean(2), worst=(UserSummary(name, 1, 2),)))
    named = [one.text for one in parsed(page).iter("th") if one.get("scope") == "row"]
    assert visible(name) in named
    assert visible(name).isprintable()


def test_page_loads_nothing_from_elsewhere() -> None:
    page = html(differing(12))
    root = parsed(page)
    assert not re.findall(r"https?:|//|url\(|@import", page)
    assert not {"script", "link", "iframe", "object", "img", "use", "a"} & {one.tag for one in root.iter()}
    assert not [one.tag for one in root.iter() if {"src", "href", "style"} & set(one.keys())]
    policy = root.find("head/meta[@http-equiv]")
    assert policy is not None
    assert policy.get("content") == "default-src 'none'; style-src 'unsafe-inline'"


def test_each_drawing_has_a_text_alternative() -> None:
    root = parsed(html(differing(12)))
    beside = {drawing: one for one in root.iter() for drawing in one}
    drawings = list(root.iter("svg"))
    for drawing in drawings:
        if drawing.get("role") == "img":
            assert re.search(r"\d", drawing.get("aria-label", ""))
        else:
            assert drawing.get("aria-hidden") == "true"
            assert re.search(r"\d", "".join(beside[drawing].itertext()))
    assert {drawing.get("class") for drawing in drawings} == {"heat", "parts", "bar"}


def test_table_of_pairs_is_symmetric_and_marks_pairs_not_compared() -> None:
    summary = replace(clean(3), pairs=(PairSummary("dc1", "dc2", 31), PairSummary("dc3", "dc1", 0)))
    table = parsed(html(summary)).find(".//div[@class='scroll matrix']/table/tbody")
    assert table is not None
    cells = [["".join(cell.itertext()) for cell in row.iter("td")] for row in table]
    levels = [[cell.get("class") for cell in row.iter("td")] for row in table]
    alike, apart, unknown = "100 %0 differ", "97.93 %31 differ", "not compared"
    assert cells == [["", apart, alike], [apart, "", unknown], [alike, unknown, ""]]
    assert levels == [["self", "level3", "level0"], ["level3", "self", "level5"], ["level0", "level5", "self"]]


@pytest.mark.parametrize(
    ("unequal", "level"), [(0, 0), (1, 1), (10, 1), (11, 2), (100, 2), (101, 3), (1000, 3), (1001, 4), (10_000, 4)]
)
def test_colour_of_a_pair_follows_its_share_of_unequal_mailboxes(unequal: int, level: int) -> None:
    root = parsed(html(replace(clean(2, 10_000), pairs=(PairSummary("dc1", "dc2", unequal),))))
    assert [one.get("class") for one in root.iterfind(".//tbody/tr/td[b]")] == [f"level{level}"] * 2


def test_each_relation_shows_its_counts_of_mailboxes_and_trees() -> None:
    summary = replace(clean(2), relations={"equal": 1471, "forked": 31}, trees={"equal": 8, "behind": 1})
    heads = [list(one.itertext()) for one in parsed(html(summary)).iterfind(".//ul[@class='terms']/li/div")]
    assert heads == [
        ["equal", "1,471 mailboxes (97.93 %)", "8 folder trees"],
        ["behind", "0 mailboxes (0 %)", "1 folder tree"],
        ["forked", "31 mailboxes (2.06 %)", "0 folder trees"],
        ["damaged", "0 mailboxes (0 %)", "0 folder trees"],
    ]


def test_heat_map_shows_all_pairs_and_a_table_lists_the_worst_first() -> None:
    summary = replace(
        clean(60), pairs=(*clean(60).pairs[:-2], PairSummary("dc58", "dc60", 2), PairSummary("dc59", "dc60", 200))
    )
    root = parsed(html(summary))
    squares = [(one.get("class"), one.findtext("title")) for one in root.iterfind(".//svg[@class='heat']/rect")]
    assert len(squares) == 60 * 59
    assert {("level4", f"{one} and {other}: 200 different") for one, other in (("dc59", "dc60"), ("dc60", "dc59"))} <= {
        *squares
    }
    assert [level for level, _ in squares].count("level2") == 2  # 2 of 1,502
    listed = root.find(".//section/div/table[caption='Pairs that agree least']/tbody")
    assert listed is not None
    assert list(listed[0].itertext()) == ["dc59", "dc60", "86.68 %", "200"]


def test_kinds_and_relations_of_a_later_version_are_shown() -> None:
    summary = replace(clean(2), kinds={"recoloured": 4711}, relations={"sleeping": 4712})
    text = text_of(html(summary))
    assert all(word in text for word in ("recoloured", "4,711", "sleeping", "4,712"))


def test_bars_are_proportional_and_small_shares_stay_visible() -> None:
    def widths(drawing: ET.Element) -> list[float]:
        return [float(one.get("width", "")) for one in drawing if one.get("class") != "rail"]

    assert [widths(bar(value, 400))[0] for value in (0, 1, 100, 400)] == [0, 0.8, 25, 100]
    drawn = widths(parts({"equal": 10**6, "behind": 0, "forked": 1}, "words"))
    assert len(drawn) == 2
    assert sum(drawn) == pytest.approx(100, abs=0.02)
    assert drawn[1] > 0.7
