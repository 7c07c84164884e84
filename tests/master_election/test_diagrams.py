"""docs/state-machines.md must show the tables that the code runs on. REWRITE_DOCS=1 draws it anew."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from master_election.scope_record import TRANSITIONS, Event, Standing

PAGE = Path(__file__).parents[2] / "docs" / "state-machines.md"
REWRITE = "REWRITE_DOCS" in os.environ

INTRODUCTION = """\
# State machines

Drawn from the tables in the code; a test fails if this page is not what they say. After a change of a table,
`REWRITE_DOCS=1 .venv/bin/pytest tests/master_election/test_diagrams.py` draws it anew.

## A scope at one node

`master_election/scope_record.py`: what a scope (a mailbox, or what `mastership.scope` puts together) is to a node, and
how it changes hands by MASTER-MOVE. While it is taken, given or split off, changes wait at that node. What is not in
the table changes nothing. A new term drops the records of all scopes, and with too many records those of scopes that
were not used for longest and of which the root knows all: a scope without a record is unknown.

"""


def diagram(transitions: Mapping[tuple[Standing, Event], Standing]) -> str:
    arrows = [
        f"    {before.name} --> {after.name}: {happening.value}" for (before, happening), after in transitions.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> UNKNOWN", *arrows, "```", ""])


def table(transitions: Mapping[tuple[Standing, Event], Standing]) -> str:
    rows = [
        "| " + " | ".join([happening.value, *(_after(transitions, before, happening) for before in Standing)]) + " |"
        for happening in Event
    ]
    head = "| what happens | " + " | ".join(Standing) + " |"
    return "\n".join([head, "|---" * (len(Standing) + 1) + "|", *rows, ""])


def _after(transitions: Mapping[tuple[Standing, Event], Standing], before: Standing, happening: Event) -> str:
    after = transitions.get((before, happening))
    return "" if after is None else after.value


def test_page_shows_the_transition_tables() -> None:
    drawn = f"{INTRODUCTION}{diagram(TRANSITIONS)}\n{table(TRANSITIONS)}"
    if REWRITE:
        PAGE.write_text(drawn, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == drawn
