"""The diagrams of docs/attachments.md, drawn from the tables in `states`. REWRITE_DOCS=1 draws them anew."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tests.attachments.model_checker.states import H_TRANSITIONS, S_TRANSITIONS, Event, State

PAGE = Path(__file__).parents[3] / "docs" / "attachments.md"
REWRITE = "REWRITE_DOCS" in os.environ

Transitions = Mapping[tuple[State, Event], State]


def diagram(transitions: Transitions) -> str:
    arrows = [f"    {before.name} --> {after.name}: {event.value}" for (before, event), after in transitions.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> NON_EXISTENT", *arrows, "```", ""])


def table(transitions: Transitions) -> str:
    states = [state for state in State if any(state is before for before, _ in transitions)]
    rows = []
    for event in Event:
        after = [transitions.get((before, event)) for before in states]
        if any(after):
            rows.append("| " + " | ".join([event.value, *("" if one is None else one.value for one in after)]) + " |")
    return "\n".join(["| what happens | " + " | ".join(states) + " |", "|---" * (len(states) + 1) + "|", *rows, ""])


def drawn(page: str, name: str, transitions: Transitions) -> str:
    section = f"<!-- drawn: {name} -->\n\n{diagram(transitions)}\n{table(transitions)}\n<!-- end: {name} -->"
    found, count = re.subn(f"<!-- drawn: {name} -->.*?<!-- end: {name} -->", lambda _: section, page, flags=re.DOTALL)
    assert count == 1
    return found


def test_document_shows_the_current_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    expected = drawn(drawn(page, "H", H_TRANSITIONS), "S", S_TRANSITIONS)
    if REWRITE:
        PAGE.write_text(expected, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == expected
