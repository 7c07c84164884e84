"""The processes of a node's doors, and their clients."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from benchmarks.clusters.cluster import Node

PATIENCE_S = 120.0


def doors_of(node: Node) -> list[psutil.Process]:
    return [one for one in psutil.Process(node.pid).children() if is_door(one)]


def is_door(process: psutil.Process) -> bool:
    try:
        return "replicator.workers" in process.cmdline()
    except psutil.Error:  # it has ended
        return False


def clients_of(door: psutil.Process) -> set[int]:
    """Return the ports of the clients whose connections the door has."""
    return {one.raddr.port for one in door.net_connections("tcp") if one.status != psutil.CONN_LISTEN}


def has_ended(process: psutil.Process) -> bool:
    """Return True if a process runs no more; whoever adopted it may not have noticed yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(what: str, true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
