from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from tests.master_election.cluster import Cluster

SCRIPTS = Path(__file__).parent / "scripts"
REWRITE = "REWRITE_SCRIPTS" in os.environ  # replaces the expected transcripts by the actual ones; read the diff


def perform(cluster: Cluster, line: str) -> list[str]:
    """Execute one line of a script, and return the trace of its effects."""
    verb, *arguments = line.split()
    match verb, arguments:
        case "start", sids:
            for sid in sids:
                cluster.start(sid)
        case "priority", [sid, number]:
            cluster.priorities[sid] = int(number)
        case "stop", [sid]:
            cluster.stop(sid)
        case "link", [a, b]:
            cluster.link(a, b)
        case "cut", [a, b]:
            cluster.cut(a, b)
        case "tick", sids:
            cluster.tick(sids)
        case "hold", [sid]:
            cluster.hold(sid)
        case "flush", [sid]:
            cluster.flush(sid)
        case "who", [sid, *scope]:
            cluster.ask(sid, " ".join(scope))
        case "busy", [sid]:
            cluster.nodes[sid].busy = True
        case "move", [sid, *scope]:
            cluster.move(sid, " ".join(scope))
        case "change", [sid, *scope]:
            cluster.change(sid, " ".join(scope))
        case "lose", [sender, ">", to]:
            cluster.lose((sender, to))
        case "deliver", [sender, ">", to]:
            cluster.deliver((sender, to))
        case "settle", []:
            cluster.settle()
        case "show", []:
            cluster.trace += cluster.describe()
        case "hops", [sid]:
            links = cluster.nodes[sid].links
            cluster.trace += [f"{sid} reaches {to} over {links.next_hop(to)}" for to in links.component if to != sid]
        case _:
            pytest.fail(f"no such line in a script: {line}")
    traced = [f"    {words}" for words in cluster.trace]
    cluster.trace.clear()
    return traced


def play(script: str) -> Iterator[str]:
    """Yield the script's lines, each followed by the indented trace of its effects."""
    cluster = Cluster()
    for line in script.splitlines():
        if line.startswith("    "):
            continue
        yield line
        if line and not line.startswith("#"):
            yield from perform(cluster, line)


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_script_has_the_expected_transcript(path: Path) -> None:
    script = path.read_text(encoding="utf-8")
    played = "\n".join(play(script)) + "\n"
    if REWRITE:
        path.write_text(played, encoding="utf-8")
    assert played == script


def test_scripts_are_found() -> None:
    assert [name for name, _ in groupby(sorted(path.stem for path in SCRIPTS.glob("*.txt")))]
