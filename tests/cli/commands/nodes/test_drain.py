from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from replicator.cli.api.client import NodeClient
from replicator.cli.commands.nodes.drain import waited
from replicator.cli.target import NodeUrl
from replicator.runtime.sessions import Facts, OpenSession
from tests.cli.served_node import ServedNode


@pytest.fixture
def client(served: ServedNode) -> Iterator[NodeClient]:
    with NodeClient(NodeUrl("127.0.0.1", served.port)) as opened:
        yield opened


def test_what_comes_after_the_last_session_is_not_waited_for(served: ServedNode, client: NodeClient) -> None:
    """The node is busy: whenever somebody looks, dc2 lacks something."""
    report = served.report
    report.lag_entries, report.has_until, report.log_end = 2, 38, 40
    lines = waited(client)
    assert next(lines) == "waiting for dc2, which lacks 2 entries"
    report.lag_entries, report.has_until, report.log_end = 3, 39, 42
    assert next(lines) == "waiting for dc2, which lacks 3 entries"
    report.lag_entries, report.has_until, report.log_end = 5, 40, 45
    assert "can be stopped" in next(lines)


def test_what_sessions_have_changed_is_waited_for(served: ServedNode, client: NodeClient) -> None:
    async def open_one() -> OpenSession:
        return await served.sessions.open(Facts("alice", None, 0, None, tls=False), "192.0.2.1")

    session = trio.from_thread.run(open_one, trio_token=served.token)
    report = served.report
    report.lag_entries, report.has_until, report.log_end = 1, 40, 41
    lines = waited(client)
    assert next(lines) == "waiting for 1 session and dc2, which lacks 1 entry"
    client.end_sessions("alice", None, None)
    assert session.was_ended
    report.lag_entries, report.has_until, report.log_end = 2, 42, 44
    assert next(lines) == "waiting for dc2, which lacks 2 entries"
    report.lag_entries, report.has_until, report.log_end = 3, 44, 47
    assert "can be stopped" in next(lines)


@pytest.mark.parametrize(("lag_entries", "has_until"), [(None, None), (7, None)])
def test_peer_of_which_too_little_is_known_is_waited_for(
    served: ServedNode, client: NodeClient, lag_entries: int | None, has_until: int | None
) -> None:
    served.report.lag_entries, served.report.has_until = lag_entries, has_until
    assert next(waited(client)).startswith("waiting for dc2, which lacks ")
