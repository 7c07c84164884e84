"""A slow disk."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.replication.cluster import Node

T = TypeVar("T")


def delay_writes(node: Node, wait: Callable[[], Awaitable[object]]) -> None:
    """Make the node's writer await `wait` before each batch from now on."""
    writer = node.store._writer
    run = writer._run_in_thread

    async def run_late(work: Callable[[], T]) -> T:
        await wait()
        return await run(work)

    writer._run_in_thread = run_late
