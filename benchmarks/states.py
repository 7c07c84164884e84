"""What nodes say of themselves over HTTP, as far as figures and the demo ask."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from typing import cast

from benchmarks.cluster import Node
from benchmarks.wire import MeasurementError

MOVED_WITHIN_S = 40.0


def are_equal(statuses: Sequence[Mapping[str, object]]) -> bool:
    """Whether all nodes show the same and none has entries that wait."""
    waiting = any(status["waiting_entries"] for status in statuses)
    return not waiting and len({status["digest"] for status in statuses}) == 1


def mailbox(node: Node, user: str, name: str = "INBOX") -> Mapping[str, object]:
    """One mailbox as the node sees it: the JSON of `MailboxStatus`."""
    known = cast("Sequence[Mapping[str, object]]", node.get(f"/api/v1/mailboxes?user={user}"))
    found = [one for one in known if one["name"] == name]
    if not found:
        raise MeasurementError(f"{node.sid} knows no {name} of {user}")
    return found[0]


def make_master(node: Node, user: str, name: str = "INBOX") -> None:
    """Move mastership of a mailbox to the node, as `replicator master move` does. Returns when it is there."""
    connection = http.client.HTTPConnection(*node.address("http"), timeout=MOVED_WITHIN_S)
    try:
        connection.request("PUT", f"/api/v1/users/{user}/folders/{name}/master?node={node.sid}")
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise MeasurementError(f"{node.sid} does not become master of {name} of {user}: {body[:200]!r}")


def expect_master(node: Node, user: str, sid: str) -> None:
    """A figure about a mailbox mastered elsewhere would mean nothing. Raises MeasurementError."""
    master = mailbox(node, user)["master"]
    if master != sid:
        raise MeasurementError(f"{sid} was to master the mailbox of {user}, but for {node.sid} it is {master}")
