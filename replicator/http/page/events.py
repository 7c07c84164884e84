"""The node's overview as server-sent events (WHATWG HTML, section 9.2): `GET /api/v1/events`.

An event `node` has an overview as JSON: the `status` (`NodeStatus`), the `reasons` why the node is not healthy, and the
`task` that runs or ended last, or null. It comes at once, then whenever the node looks different, and at least every
`BEAT_S`. An event `problem` has `detail`, the reason why there is no overview now.

The node looks at itself at most once in `LOOK_S`, however many clients listen, and less often if that takes long. The
stream belongs to the connection's task. It ends after `STREAM_S`, when the node stops, or when the client's token no
longer holds, whichever comes first; clients then ask again.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import TypeAlias, get_args

import trio

from replicator.errors import MailError
from replicator.http.message import EventStream, Request, encode_json
from replicator.http.services import HttpServices
from replicator.tasks import TaskName, TaskStatus

LOOK_S = 1.0
BEAT_S = 5.0  # an operator sees by it that the line is still there
STREAM_S = 600.0

Document: TypeAlias = dict[str, object]


async def get_events(services: HttpServices, _request: Request) -> EventStream:
    """Return the stream of overviews."""
    return EventStream(_Events(services).next, STREAM_S)


class _Events:
    """The last overview that one client has been told."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._told = b""
        self._told_at = -BEAT_S

    async def next(self) -> bytes:
        """Return the next event, once there is one: after `BEAT_S` at the latest, and the time of a look."""
        while True:
            event, state = await self._look()
            if state != self._told or trio.current_time() >= self._told_at + BEAT_S:
                self._told, self._told_at = state, trio.current_time()
                return event
            await trio.sleep(LOOK_S)

    async def _look(self) -> tuple[bytes, bytes]:
        """Return an event, and what it says besides the time."""
        try:
            return await self._services.overviews.get(partial(_overview, self._services), LOOK_S)
        except MailError as error:
            event = _event("problem", {"detail": str(error)})
            return event, event


async def _overview(services: HttpServices) -> tuple[bytes, bytes]:
    status = await services.status.node_status()
    reasons = list(await services.status.healthy())
    task = _last_task(services)
    document: Document = {"status": asdict(status), "reasons": reasons, "task": task}
    timeless = {**document, "status": asdict(replace(status, clock_ms=0))}
    return _event("node", document), encode_json(timeless)


def _last_task(services: HttpServices) -> Document | None:
    """Return the running task, or the one that ended last."""
    known = [status for name in get_args(TaskName) if (status := services.tasks.status(name)) is not None]
    last = max(known, key=lambda status: (status.is_running, status.ended_ms or 0), default=None)
    return None if last is None else _task_document(last)


def _task_document(status: TaskStatus) -> Document:
    """Return what all tasks have. Their findings may be thousands."""
    return {
        "task": status.task,
        "state": status.state,
        "started_ms": status.started_ms,
        "ended_ms": status.ended_ms,
        "done": status.done,
        "total": status.total,
        "error": status.error,
        "summary": status.summary(),
    }


def _event(name: str, document: Document) -> bytes:
    # JSON has no line ends but the last one: those in texts are escaped.
    return b"event: " + name.encode() + b"\ndata: " + encode_json(document) + b"\n"
