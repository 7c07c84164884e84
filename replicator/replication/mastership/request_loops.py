"""What goes in a circle: nodes that each take another one for the master pass a request on for ever.

Each of them may be right about the past. Whoever is asked for what it has itself passed on, and has not heard of since,
breaks the circle. Two clients that ask for the same at one moment look like one; the second is sent back to ask again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class RequestLoops:
    """Requests that are at other nodes now. They are hashable, and equal if they are the same there and here."""

    def __init__(self) -> None:
        self._counts: Counter[object] = Counter()

    def __contains__(self, request: object) -> bool:
        """Whether the request, or its twin, has been passed on by this node and not been answered."""
        return request in self._counts

    @contextmanager
    def passing(self, request: object) -> Iterator[None]:
        """The request is at another node."""
        self._counts[request] += 1
        try:
            yield
        finally:
            self._counts[request] -= 1
            if not self._counts[request]:
                del self._counts[request]
