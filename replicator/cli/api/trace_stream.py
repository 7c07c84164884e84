"""Reading the events of a trace: `GET /api/v1/trace`, as server-sent events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from protocol.units import MIB
from replicator.cli.api.documents import parsed
from replicator.tracing.traced import EVENTS, TraceEnded, TraceEvent

EVENT_BYTES_MAX = 4 * MIB
"""Octets of the largest event: a batch may name some hundred entries and mailboxes."""


def trace_events(chunks: Iterable[bytes], broken: Callable[[str], Exception]) -> Iterator[TraceEvent | None]:
    """Yield the events of an answer, which arrives in chunks, up to TraceEnded, and None for a comment.

    Raises what `broken` returns if this is no such answer, or a part of one.
    """
    text = b""
    for chunk in chunks:
        *whole, text = (text + chunk).split(b"\n\n")
        if len(text) > EVENT_BYTES_MAX:
            raise broken("an event has no end")
        for lines in whole:
            try:
                event = _event(lines)
            except (KeyError, TypeError, ValueError) as error:
                raise broken(repr(error)) from error
            yield event
            if isinstance(event, TraceEnded):
                return
    raise broken("it ends in the middle")


def _event(lines: bytes) -> TraceEvent | None:
    if lines.startswith(b":"):
        return None
    name, _, data = lines.removeprefix(b"event: ").partition(b"\ndata: ")
    return parsed(EVENTS[name.decode()], json.loads(data))
