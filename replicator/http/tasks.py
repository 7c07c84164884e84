"""The routes of tasks that run for long: start one, look after it, end it. TASK is `check` or `scrub`.

| route | answers |
|---|---|
| `POST /api/v1/TASK` | 202 and `CheckStatus`; 409 while a check or scrub runs |
| `GET /api/v1/TASK?wait=` | `CheckStatus` of the present or the last one; 404 if there was none |
| `DELETE /api/v1/TASK` | `CheckStatus` once it has ended |

POST takes a JSON object: `repair`, whether a check mends what it finds (a scrub always does), and `rate`, rows a second
at most. With `wait=true` GET answers when the task has ended, or after a second.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from http import HTTPStatus

import trio

from replicator.http.message import JSON_TYPE, ProblemError, Request, Response, json_response
from replicator.http.routing import Route
from replicator.http.services import HttpServices
from replicator.status import TaskName

WAIT_S = 1.0  # between two looks at how far it is
CANCEL_S = 30.0  # what a task does at once takes a few seconds, in a mailbox of a million messages
RATE_MAX = 10**9  # rows a second; more than any machine reads


async def start(services: HttpServices, request: Request, name: TaskName) -> Response:
    """Begin a check or scrub."""
    repair, rate = _options(request.body)
    status = services.checks.start(name, repair=repair or name == "scrub", rate=rate)
    if status is None:
        raise ProblemError(HTTPStatus.CONFLICT, "a check or scrub runs here already; wait for its end, or cancel it")
    return json_response(asdict(status), HTTPStatus.ACCEPTED)


async def show(services: HttpServices, request: Request, name: TaskName) -> Response:
    """How far it is, or what it has found."""
    if request.query.get("wait") == "true":
        with trio.move_on_after(WAIT_S):
            await services.checks.wait(name)
    return _status(services, name)


async def cancel(services: HttpServices, _request: Request, name: TaskName) -> Response:
    """End it. To be repeated at will."""
    services.checks.cancel(name)
    with trio.move_on_after(CANCEL_S):
        await services.checks.wait(name)
    return _status(services, name)


def _status(services: HttpServices, name: TaskName) -> Response:
    status = services.checks.status(name)
    if status is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, f"no {name} has run here since the node's start")
    return json_response(asdict(status))


def _options(body: bytes) -> tuple[bool, int | None]:
    """`repair` and `rate`. Raises ProblemError."""
    try:
        options = json.loads(body or b"{}")
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
    if not isinstance(options, dict) or options.keys() - {"repair", "rate"}:
        raise ProblemError(HTTPStatus.BAD_REQUEST, 'the body must be a JSON object with "repair" and "rate", or less')
    repair, rate = options.get("repair", False), options.get("rate")
    if not isinstance(repair, bool):
        raise ProblemError(HTTPStatus.BAD_REQUEST, "repair must be true or false")
    if rate is not None and (type(rate) is not int or not 0 < rate <= RATE_MAX):
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"rate must be a number of rows a second from 1 to {RATE_MAX}")
    return repair, rate


def _routes(name: TaskName) -> tuple[Route[HttpServices], ...]:
    path = f"/api/v1/{name}"
    return (
        Route("POST", path, partial(start, name=name), body_type=JSON_TYPE),
        Route("GET", path, partial(show, name=name), query=frozenset({"wait"})),
        Route("DELETE", path, partial(cancel, name=name)),
    )


TASK_ROUTES = (*_routes("check"), *_routes("scrub"))
