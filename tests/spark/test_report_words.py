"""Words of the report: the verdict, the next steps, shares and times."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from spark.report.markup import moment, share, span
from spark.report.page import html
from spark.report.summary import Summary
from spark.report.verdict import sentence, steps
from tests.spark.summaries import clean, damaged_nodes, parsed

SOME = {"equal": 1471, "behind": 20, "forked": 11}
ALL_SAME = "All 3 nodes show the same 1,502 mailboxes"


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        (clean(0, 0), "No inventory was compared, so nothing is known."),
        (clean(1), "There is only node dc1, with 1,502 mailboxes, to compare."),
        (clean(2), "Both nodes show the same 1,502 mailboxes."),
        (clean(3), f"{ALL_SAME}."),
        (clean(3, 1), "All 3 nodes show the same 1 mailbox."),
        (clean(3, 0), "All 3 nodes show the same: there are no mailboxes yet."),
        (replace(clean(3), relations=SOME), "31 of 1,502 mailboxes differ between the 3 nodes."),
        (
            replace(clean(3), relations={"equal": 1501, "forked": 1}),
            "1 of 1,502 mailboxes differs between the 3 nodes.",
        ),
        (replace(clean(3), trees={"equal": 7, "behind": 2}), "2 of 9 folder trees differ between the 3 nodes."),
        (
            replace(clean(3), relations=SOME, trees={"damaged": 1}, nodes=damaged_nodes(5, 1)),
            (
                "31 of 1,502 mailboxes and 1 of 1 folder tree differ between the 3 nodes; "
                "and 5 rows could not be read and 1 index row is wrong."
            ),
        ),
        (replace(clean(3), nodes=damaged_nodes(0, 1200)), f"{ALL_SAME}, but 1,200 index rows are wrong."),
        (replace(clean(3), nodes=damaged_nodes(1, 0)), f"{ALL_SAME}, but 1 row could not be read."),
        (replace(clean(1), relations={"damaged": 2}), "2 of 1,502 mailboxes differ from what the node has seen."),
    ],
)
def test_the_verdict_is_one_plain_sentence(summary: Summary, said: str) -> None:
    assert sentence(summary) == said
    heading = parsed(html(summary)).find("body/main/header/h1")
    assert heading is not None
    assert heading.text == said
    assert heading.get("class") == ("good" if summary.nodes and summary.is_clean else "bad")


@pytest.mark.parametrize(
    ("summary", "commands"),
    [
        (clean(0, 0), ["inventory", "diff"]),
        (clean(3), []),
        (replace(clean(3), relations=SOME), ["apply DIR", "inventory", "diff"]),
        (replace(clean(3), trees={"behind": 2}), ["apply DIR", "inventory", "diff"]),
        (replace(clean(3), relations={"damaged": 2}), ["check --repair", "inventory", "diff"]),
        (replace(clean(3), trees={"damaged": 1, "forked": 1}), ["check --repair", "apply DIR", "inventory", "diff"]),
        (replace(clean(3), nodes=damaged_nodes(0, 1)), ["check --repair", "inventory", "diff"]),
    ],
)
def test_next_steps_follow_from_the_differences(summary: Summary, commands: list[str]) -> None:
    assert [one for step in steps(summary) for one in re.findall("`replicator ([^`]*)`", step)] == commands


def test_next_steps_name_the_damaged_node_or_else_every_node() -> None:
    assert "at dc1, where" in next(iter(steps(replace(clean(3), nodes=damaged_nodes(1, 0)))))
    assert "at every node: what nodes show of 2 mailboxes" in next(
        iter(steps(replace(clean(3), nodes=damaged_nodes(1, 0), relations={"damaged": 2})))
    )


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (0, 0, "100 %"),
        (0, 7, "0 %"),
        (-1, 7, "0 %"),
        (7, 7, "100 %"),
        (999_999, 10**6, "99.99 %"),
        (1, 10**6, "under 0.01 %"),
    ],
)
def test_inexact_share_is_never_rounded_to_0_or_100_percent(part: int, whole: int, said: str) -> None:
    assert share(part, whole) == said


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0 s"),
        (7, "7 ms"),
        (61_999, "1 min 1 s"),
        (7_200_000, "2 h"),
        (93_784_000, "1 d 2 h"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_spans_have_their_two_largest_units(ms: int, said: str) -> None:
    assert span(ms) == said


def test_unrepresentable_time_is_shown_in_ms() -> None:
    assert moment(1 << 62) == "4,611,686,018,427,387,904 ms after 1970"
