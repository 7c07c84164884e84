"""Drawn histories: written pictures, and drawings of any history, whose lines are followed back to the entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.cli.stories.graph import Drawn, drawn
from tests.effort import examples

History = Sequence[tuple[str, Sequence[str]]]

PICTURES: dict[str, tuple[History, str]] = {
    "one line": ([("b", ["a"]), ("a", [])], "* b\n* a"),
    "fork and merge": (
        [("m", ["a", "b"]), ("b", ["f"]), ("a", ["f"]), ("f", [])],
        r"""
*   m
|\
| * b
* | a
|/
*   f""",
    ),
    "branch that waits": (
        [("b", ["f"]), ("a", ["f"]), ("f", [])],
        r"""
*   b
| * a
|/
*   f""",
    ),
    "merge of a merge": (
        [("n", ["m", "c"]), ("c", ["f"]), ("m", ["a", "b"]), ("b", ["f"]), ("a", ["f"]), ("f", [])],
        r"""
*     n
|\
| *   c
* |   m
|\ \
| * | b
* | | a
|_|/
|/
*     f""",
    ),
    "predecessor that is not there": ([("c", []), ("b", []), ("a", [])], "*   c\n  * b\n*   a"),
    "merge of two histories of one entry": ([("m", ["a", "a"]), ("a", [])], "* m\n|\\\n|/\n* a"),
}


def picture(lines: Sequence[Drawn[str]]) -> str:
    width = max(len(line.prefix) for line in lines)
    return "\n".join(f"{line.prefix:<{width}}{line.name or ''}".rstrip() for line in lines)


@pytest.mark.parametrize("what", PICTURES)
def test_pictures(what: str) -> None:
    history, expected = PICTURES[what]
    shown = picture([*drawn(history)])
    assert shown == expected.strip("\n")


SIZE_MAX = 14
BEFORES = [
    st.just(list[int]()),
    *(st.lists(st.integers(1, later), max_size=3) for later in range(1, SIZE_MAX)),
]
"""Strategies of an entry's predecessors, as distances, by the number of entries after it; making them takes long."""


def histories_of(size: int) -> st.SearchStrategy[History]:
    return st.tuples(*reversed(BEFORES[:size])).map(
        lambda history: [
            (f"e{number}", [f"e{number + distance}" for distance in distances])
            for number, distances in enumerate(history)
        ]
    )


HISTORIES = st.one_of([histories_of(size) for size in range(1, SIZE_MAX + 1)])


@given(HISTORIES)
@settings(max_examples=examples(100, 3000))
def test_lines_lead_from_each_entry_to_its_predecessors(history: History) -> None:
    lines = [*drawn(history)]
    assert [line.name for line in lines if line.name is not None] == [name for name, _ in history]
    assert all(line.prefix.count("*") == (line.name is not None) for line in lines)
    assert followed(lines) == {(name, before) for name, befores in history for before in befores}


def followed(lines: Sequence[Drawn[str]]) -> set[tuple[str, str]]:
    """Return which entries the lines connect, from an upper to a lower one."""
    edges: set[tuple[str, str]] = set()
    flow: defaultdict[int, set[str]] = defaultdict(set)  # place in the line -> the entries that lead down there
    for line in lines:
        after: defaultdict[int, set[str]] = defaultdict(set)
        for place, char in enumerate(line.prefix):
            match char:
                case "*":
                    assert line.name is not None
                    edges |= {(above, line.name) for above in flow[place]}
                    after[place] = {line.name}
                case "|":
                    after[place] |= flow[place]
                case "\\":
                    after[place + 1] |= flow[place - 1]
                case "/":
                    target = place - 1
                    while target and line.prefix[target - 1] == "_":
                        target -= 2
                    after[target] |= flow[place + 1]
                case _:
                    assert char in " _"
        flow = after
    return edges
