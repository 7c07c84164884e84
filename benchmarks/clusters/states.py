"""Nodes' statuses over HTTP, as far as figures and the demo need them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import cast

from benchmarks.clients.wire import MeasurementError
from benchmarks.clusters.cluster import Node

LOG_GONE_WITHIN_S = 300.0


def are_equal(statuses: Sequence[Mapping[str, object]]) -> bool:
    """Return True if all nodes show the same, and none has entries that wait or mail that is to change its folder."""
    waiting = any(status["waiting_entries"] or status["stray_folders"] for status in statuses)
    return not waiting and len({status["digest"] for status in statuses}) == 1


def mailbox(node: Node, user: str, name: str = "INBOX") -> Mapping[str, object]:
    """Return one mailbox as the node sees it: the JSON of `MailboxStatus`."""
    known = cast("Sequence[Mapping[str, object]]", node.get(f"/api/v1/mailboxes?user={user}"))
    found = [one for one in known if one["name"] == name]
    if not found:
        raise MeasurementError(f"{node.sid} knows no {name} of {user}")
    return found[0]


def make_master(node: Node, user: str, name: str = "INBOX") -> None:
    """Move mastership of a mailbox to the node, as `replicator master move` does. Returns when it has arrived."""
    node.ask("PUT", f"/api/v1/users/{user}/folders/{name}/master?node={node.sid}")


def expect_master(node: Node, user: str, sid: str) -> None:
    """Raise MeasurementError if another node masters the mailbox: its figure would mean nothing."""
    master = mailbox(node, user)["master"]
    if master != sid:
        raise MeasurementError(f"{sid} was to master the mailbox of {user}, but for {node.sid} it is {master}")


def run_task(node: Node, name: str, options: Mapping[str, object], within_s: float) -> Mapping[str, object]:
    """Run a long task at the node, as `replicator resync` does, and return its report. Raises MeasurementError."""
    path, deadline = f"/api/v1/{name}", time.monotonic() + within_s
    status = node.ask("POST", path, options)
    while status["state"] == "running":
        if time.monotonic() > deadline:
            raise MeasurementError(f"a {name} at {node.sid} is not done in {within_s:.0f} s: {status}")
        status = node.get(f"{path}?wait=true")
    if status["state"] != "done":
        raise MeasurementError(f"a {name} at {node.sid} has not been done: {status}")
    return status


def checkpoint(node: Node, within_s: float) -> Mapping[str, object]:
    """Make the node write checkpoints, as `replicator checkpoint` does. Return their state. Raises MeasurementError."""
    deadline = time.monotonic() + within_s
    while True:
        status = node.ask("POST", "/api/v1/checkpoint")
        if status["in_force"] or status["waits_for"]:
            return status
        if time.monotonic() > deadline:
            raise MeasurementError(f"{node.sid} does not write checkpoints in {within_s:.0f} s: {status}")


def drop_log(node: Node) -> None:
    """Remove the entries behind a checkpoint from the log of a node that need not wait for others to do so."""
    deadline = time.monotonic() + LOG_GONE_WITHIN_S
    while node.get("/api/v1/status")["log_entries"]:
        if time.monotonic() > deadline:
            raise MeasurementError(f"{node.sid} keeps its log:\n{node.log_tail()}")
        checkpoint(node, LOG_GONE_WITHIN_S)
