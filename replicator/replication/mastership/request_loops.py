"""Detects forwarding loops: nodes that each take another one for the master would pass a request on for ever.

Each of them may know an outdated master. A node breaks the loop if it receives a request that it has itself passed on
and that is not answered yet. Identical requests of two clients at one moment look like a loop; the second one is
refused and sent again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class RequestLoops:
    """Requests that are at other nodes now. They are hashable, and compare equal on all nodes if they are the same."""

    def __init__(self) -> None:
        self._counts: Counter[object] = Counter()

    def __contains__(self, request: object) -> bool:
        """Return True if this node has passed on the request, or an identical one, and has no answer yet."""
        return request in self._counts

    @contextmanager
    def passing(self, request: object) -> Iterator[None]:
        """Count the request as passed on during the block."""
        self._counts[request] += 1
        try:
            yield
        finally:
            self._counts[request] -= 1
            if not self._counts[request]:
                del self._counts[request]
