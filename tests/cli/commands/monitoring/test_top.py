from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
import trio

from replicator.cli import node_pace
from replicator.cli.api.client import NodeClient
from replicator.cli.node_pace import Figures, Pace, Watch
from replicator.cli.target import parse_url
from replicator.runtime.sessions import Facts
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode

SESSIONS = (
    Facts("alice", "FETCH", 31_000, "Lists/[x]", tls=True),
    Facts("alice", "SEARCH", 1_000, "INBOX", tls=True),
    Facts("alice", None, 0, None, tls=True),
    Facts("bob", "IDLE", 0, "INBOX", tls=True),
    Facts("eve", "NOOP", 91_000, None, tls=True),
    Facts(None, None, 0, None, tls=False),
)
"""The node's clock stands at 91 s."""


def open_sessions(served: ServedNode, sessions: Sequence[Facts]) -> None:
    async def open_all() -> None:
        for facts in sessions:
            await served.sessions.open(facts)

    trio.from_thread.run(open_all, trio_token=served.token)


def test_busiest_users_and_longest_commands_come_first(served: ServedNode, invoke: Invoke) -> None:
    open_sessions(served, SESSIONS)
    result = invoke("top", "--seconds", "0.5", "--count", "2", "--json", "--url", served.url)
    assert (result.exit_code, result.stderr) == (0, "")
    views = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(views) == 2
    view = views[1]
    assert (view["node"], view["sessions"], view["seconds"] >= 0.5) == ("dc1", 6, True)
    assert [(one["user"], one["sessions"], one["running"]) for one in view["users"]] == [
        ("alice", 3, 2), ("eve", 1, 1), ("bob", 1, 0),
    ]  # fmt: skip
    assert [(one["command"], one["mailbox"]) for one in view["running"]] == [
        ("SEARCH", "INBOX"), ("FETCH", "Lists/[x]"), ("NOOP", None),
    ]  # fmt: skip
    since_status_s = (views[0]["sessions_ms"] - views[0]["clock_ms"]) / 1000
    assert since_status_s > 0
    ages = [one["for_s"] - since_status_s for one in views[0]["running"]]
    assert ages == pytest.approx([90, 60, 0])
    assert [(one["peer"], one["up"], one["lag_entries"], one["lag_s"]) for one in view["peers"]] == [
        ("dc2", True, 0, 0), ("dc3", False, 7, 1.5),
    ]  # fmt: skip


def test_a_view_is_a_screen(served: ServedNode, invoke: Invoke) -> None:
    open_sessions(served, SESSIONS)
    result = invoke("top", "--seconds", "0.5", "--count", "1", "--url", served.url)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [re.sub(r" +", " ", line).strip() for line in result.stdout.splitlines()]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", lines[0])
    assert lines[1].startswith("dc1, the last 0.")
    assert "dc3 down 0.0 0 B 0.0 0 B 7 1.5" in lines
    assert "6 sessions" in lines
    assert "alice 3 2" in lines
    assert any(re.match(r"FETCH \d+\.\d s alice Lists/\[x\] core ", line) for line in lines)


def test_json_has_no_characters_that_a_terminal_would_obey(served: ServedNode, invoke: Invoke) -> None:
    open_sessions(served, [Facts("alice", "FETCH", 0, "a\u202e\u009b31m", tls=True)])
    result = invoke("top", "--seconds", "0.5", "--count", "1", "--json", "--url", served.url)
    assert result.stdout.removesuffix("\n").isprintable()
    assert json.loads(result.stdout)["running"][0]["mailbox"] == "a\u202e\u009b31m"


def test_a_node_that_cannot_be_asked_is_named(invoke: Invoke) -> None:
    result = invoke("top", "--count", "1", "--url", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "is the node running?" in result.stderr


def test_rates_are_not_told_over_the_start_of_a_node(served: ServedNode) -> None:
    with NodeClient(parse_url(served.url)) as client:
        watch = Watch(client)
        assert watch.look() is None
        assert watch.look() is not None
        served.report.sid = "dc9"  # and so its origin is another one
        assert watch.look() is None
        assert watch.look() is not None


@pytest.mark.parametrize(("rest", "second"), [(0, 6), (1e9, 0)])
def test_sessions_are_asked_for_a_small_part_of_the_time(
    served: ServedNode, monkeypatch: pytest.MonkeyPatch, rest: float, second: int
) -> None:
    monkeypatch.setattr(node_pace, "REST", rest)
    with NodeClient(parse_url(served.url)) as client:
        watch = Watch(client)
        watch.look()
        open_sessions(served, SESSIONS)
        view = watch.look()
        assert view is not None
        assert view.sessions == second


def test_rates_are_of_what_has_the_labels() -> None:
    text = '# TYPE a counter\na_total{{x="1",y="1"}} {}\na_total{{x="1",y="2"}} {}\na_total{{x="2",y="1"}} {}\n'
    pace = Pace(Figures(text.format(1, 2, 3)), Figures(text.format(2, 4, 3)), 2.0)
    assert (pace.sum("a_total"), pace.sum("a_total", x="1"), pace.sum("a_total", x="2")) == (1.5, 1.5, 0)
    assert (pace.by("a_total", "y"), pace.sum("b_total")) == ({"1": 0.5, "2": 1.0}, 0)
    assert Pace(pace.now, pace.before, 2.0).sum("a_total") == 0, "a door's figures have gone"
