"""Relations between the durations of replication, and the page that lists them. REWRITE_DOCS=1 writes the page anew."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from replicator.replication import timing as t

PAGE = Path(__file__).parents[2] / "docs" / "timing.md"

ASCENDING = {
    "a client's change ends before its node gives up waiting for a peer's reply to it":
        (t.REQUEST_TIMEOUT_S, t.STALLED_S, t.LINK_REPLY_S, t.LINK_REPLY_LARGE_S, t.LINK_REPLY_LONG_S),
    "the steps of a change fit into its time": (t.ROUTER_SOURCE_TIMEOUT_S, t.ROUTER_ASK_TIMEOUT_S, t.REQUEST_TIMEOUT_S),
    "a client hears that a body does not come, before the client's request ends":
        (t.BODIES_PATIENCE_S, t.REQUEST_TIMEOUT_S),
    "several neighbours can be asked while a client waits": (3 * t.PEER_FETCH_NEXT_AFTER_S, t.BODIES_PATIENCE_S),
    "a chunk that this node's disk does not return can come from another node in time":
        (t.ATTACHMENTS_READ_TIMEOUT_S, t.ATTACHMENTS_CHUNK_TIMEOUT_S),
    "entries that a client may wait for are neither passed over nor removed":
        (t.REQUEST_TIMEOUT_S + t.TRANSFER_MAX_S, t.GAPS_PATIENCE_S + 1e-9, t.BOOTSTRAP_AGE_MIN_S),
    "prestaged attachments are kept until the slowest neighbour has them": (t.TRANSFER_MAX_S / 2, t.PRESTAGE_HELD_S),
    "entries are overdue before they are abandoned": (t.OVERDUE_S, t.OVERDUE_PAUSE_MIN_S * 4, t.OVERDUE_ABANDON_S),
    "a branch is merged, or taken for stuck, before its entries are overdue":
        (t.FORK_SCHEDULER_QUIET_S, t.FORK_SCHEDULER_GROWING_MAX_S, t.OVERDUE_S),
    "an entry on its way comes by the log before its state is adopted":
        (t.FORK_SCHEDULER_PATIENCE_S, t.RECONCILIATION_LOG_FIRST_S),
    "adverts come back before an overdue entry is doubted": (t.ELECTIONS_REFRESH_S, t.OVERDUE_ABANDON_S),
    "a rebuild waits for two looks of the backfill": (2 * t.BACKFILL_RETRY_S, t.REBUILD_STUCK_S),
    "a rebuild waits for a link that is dialled again": (t.REDIAL_MAX_S, t.REBUILD_ALL_REACH_S, t.REBUILD_REACH_S),
    "statements of what is settled come several times in a round":
        (3 * t.SETTLED_SAY_EVERY_S, t.LOG_TRUNCATION_ROUND_EVERY_S),
    "logs are looked for twice before anti-entropy compares": (2 * t.LACK_S, t.ANTI_ENTROPY_QUIET_S),
    "pauses grow": (t.REDIAL_FIRST_S, t.REDIAL_MAX_S),
    "pauses between LOGs grow": (t.LACK_S, t.LACK_MAX_S),
    "pauses between tries of branches grow": (t.FORK_MERGE_APART_S, t.FORK_MERGE_APART_MAX_S),
    "rounds of retention": (t.RETENTION_LEAST_S, t.RETENTION_MOST_S, t.RETENTION_UNNAMED_EVERY_S),
}  # fmt: skip
"""Reason -> durations, each shorter than the next."""


@pytest.mark.parametrize("why", ASCENDING)
def test_durations_fit_together(why: str) -> None:
    assert all(one < other for one, other in pairwise(ASCENDING[why])), ASCENDING[why]


def rows() -> Iterator[str]:
    """Yield the lines of the page: a table for each section of the module."""
    source = Path(t.__file__).read_text("utf-8")
    lines, body = source.splitlines(), ast.parse(source).body
    section = ""
    for before, after in pairwise(body):
        match before, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)], lineno=number),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                above = [line for line in lines[:number] if line.startswith("# ---- ")]
                if above[-1] != section:
                    section = above[-1]
                    yield from (
                        "",
                        f"## {section.removeprefix('# ---- ')}",
                        "",
                        "| constant | seconds | for |",
                        "|---|---|---|",
                    )
                yield f"| `{name}` | {getattr(t, name):g} | {' '.join(text.split())} |"
            case ast.Assign(targets=[ast.Name(id=name)]), _:
                raise AssertionError(f"{name} has no docstring")


def test_page_lists_all_durations() -> None:
    page = "\n".join([
        "# Durations of replication", "",
        "Generated from `replicator/replication/timing.py`. `mastership.timeout` and `mastership.heartbeat` are set by",
        "the operator ([configuration.md](configuration.md)); all others are fixed. How they fit together is asserted",
        "in `tests/replication/test_timing.py`.", *rows(), "",
    ])  # fmt: skip
    if "REWRITE_DOCS" in os.environ:
        PAGE.write_text(page, "utf-8")
    assert PAGE.read_text("utf-8") == page, "run REWRITE_DOCS=1 .venv/bin/pytest tests/replication/test_timing.py"
