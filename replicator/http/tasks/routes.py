"""Routes of tasks: start one, watch it, cancel it.

TASK is `check`, `scrub`, `resync`, `undelete`, `inventory` or `apply`.

| route | answers |
|---|---|
| `POST /api/v1/TASK` | 202 and the task's status; 409 while a task of any kind runs |
| `GET /api/v1/TASK?wait=` | the status of the running or the last one; 404 if there was none |
| `DELETE /api/v1/TASK` | its status once it has ended |

POST takes a JSON object with the task's options. Each of these may be left out:

- `rate`, of a check, scrub or resync: rows a second at most;
- `repair`, of a check: repair the damage that it finds (a scrub always does);
- `user`, `mailbox`, `peer` and `dry_run`, of a resync: one user, one of the user's mailboxes, the node to compare with,
  and a run that changes nothing.

An undelete requires `user` and `mailbox`, and may have `since_ms`, the earliest time of the expunge (milliseconds since
the epoch), and `dry_run`. An inventory requires `to`, an absolute path on the node's machine or `s3://bucket/prefix`,
and may have the `endpoint` of that bucket, and `overwrite`, to replace an incomplete inventory. Where a token may have
it written, `destinations` says; elsewhere it is answered with 403.

An apply has the `mailboxes` of a repair plan (docs/repair.md), at most 1,000 with at most 10,000 heads:

    {"user": "alice", "mailbox": "<32 hexadecimal digits>", "uidvalidity": 1, "damaged": false,
     "heads": {"dc1": ["dc1.1a2b", 17], "dc2": null}}

`uidvalidity` is 0 for a folder tree, whose id follows from the user's name. `heads` gives the origin and the sequence
number of the newest entry that each node showed, or null if it showed nothing; the receiving node must be among them.
`damaged`, which is optional, means that the mailbox is left alone. An apply may also have `rate`, mailboxes a second at
most, `dry_run`, and `texts`, to end only when the bodies of new messages are here, or no more arrive.

Impossible names are answered with 400. With `wait=true`, GET answers when the task has ended, or after a second. The
data types are in `replicator.tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from http import HTTPStatus

import trio

from protocol.units import KIB
from replicator.config.values import S3_URL, endpoint, sid
from replicator.errors import InvalidNameError
from replicator.http.documents import ApplyDocument
from replicator.http.message import JSON_TYPE, Caller, ProblemError, Request, Response, json_response
from replicator.http.parameters import flag
from replicator.http.routing import Route
from replicator.http.services import HttpServices
from replicator.http.tasks.options import Options
from replicator.http.tasks.planned import planned_mailboxes
from replicator.mail.annotations import check_owner_name
from replicator.mail.mailstore import canonical_name, check_folder_name
from replicator.tasks import (
    ApplyOptions,
    ApplyStatus,
    CheckOptions,
    CheckStatus,
    InventoryOptions,
    InventoryStatus,
    ResyncOptions,
    ResyncStatus,
    ScrubOptions,
    TaskName,
    TaskOptions,
    UndeleteOptions,
    UndeleteStatus,
)
from replicator.users import folded

WAIT_S = 1.0  # between two reports of progress
PATH_BYTES_MAX = 4000  # Linux takes 4096, including the names of files
LARGE_BODY_BYTES = 16 * KIB  # a plan; it takes a thread up to a second to read, and would take the loop as long
CANCEL_S = 30.0  # a single step of a task takes a few seconds, in a mailbox of a million messages


async def start(services: HttpServices, request: Request, name: TaskName) -> Response:
    """Start a task."""
    is_large = len(request.body) > LARGE_BODY_BYTES
    options = await services.run_in_thread(partial(Options, request.body)) if is_large else Options(request.body)
    parse = partial(_ORDERS[name], services, options)
    is_plan = is_large and name == "apply"  # whose mailboxes need nothing of the node to be checked
    order = await services.run_in_thread(parse) if is_plan else parse()
    if isinstance(order, ResyncOptions | UndeleteOptions) and order.user is not None:
        order = replace(order, user=await services.owner(order.user))
    if isinstance(order, InventoryOptions) and request.caller is not Caller.OPERATOR:
        services.destinations.check(order.to, order.endpoint)
    status = services.tasks.start(order)
    if status is None:
        running = services.tasks.running()
        raise ProblemError(
            HTTPStatus.CONFLICT, f"{_an(running)} is already running here; wait until it ends, or cancel it"
        )
    return json_response(asdict(status), HTTPStatus.ACCEPTED)


def _an(name: TaskName | None) -> str:
    return f"an {name}" if name is not None and name[0] in "aeiou" else f"a {name}"


async def show(services: HttpServices, request: Request, name: TaskName) -> Response:
    """Return the task's progress or result."""
    if flag(request, "wait"):
        with trio.move_on_after(WAIT_S):
            await services.tasks.wait(name)
    return _status(services, name)


async def cancel(services: HttpServices, _request: Request, name: TaskName) -> Response:
    """Cancel the task. Idempotent."""
    services.tasks.cancel(name)
    with trio.move_on_after(CANCEL_S):
        await services.tasks.wait(name)
    return _status(services, name)


def _status(services: HttpServices, name: TaskName) -> Response:
    status = services.tasks.status(name)
    if status is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, f"no {name} has run here since the node started")
    return json_response(asdict(status))


def _check(_services: HttpServices, options: Options) -> CheckOptions:
    options.allow("repair", "rate")
    return CheckOptions(options.flag("repair"), options.rate())


def _scrub(_services: HttpServices, options: Options) -> ScrubOptions:
    options.allow("rate")
    return ScrubOptions(options.rate())


def _resync(services: HttpServices, options: Options) -> ResyncOptions:
    """Parse the options of a resync, which also compares the mail of users who are gone."""
    options.allow("user", "mailbox", "peer", "dry_run", "rate")
    user, mailbox = options.text("user"), options.text("mailbox")
    if mailbox is not None:
        mailbox = canonical_name(mailbox)
    if user is None and mailbox is not None:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "mailbox needs a user: name the owner of the mailbox")
    peer = options.text("peer")
    if peer == services.sid:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"{peer} is the node itself; name another one to compare it with")
    try:
        _check_names(user, mailbox, peer)
    except (ValueError, InvalidNameError) as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    return ResyncOptions(user, mailbox, peer, options.flag("dry_run"), options.rate())


def _undelete(_services: HttpServices, options: Options) -> UndeleteOptions:
    """Parse the options of an undelete, which also restores the mail of users who are gone."""
    options.allow("user", "mailbox", "since_ms", "dry_run")
    user, mailbox = options.text("user"), options.text("mailbox")
    if user is None or mailbox is None:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "an undelete needs a user and a mailbox")
    mailbox = canonical_name(mailbox)
    try:
        _check_names(user, mailbox, None)
    except (ValueError, InvalidNameError) as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    return UndeleteOptions(user, mailbox, options.time_ms("since_ms"), options.flag("dry_run"))


def _inventory(_services: HttpServices, options: Options) -> InventoryOptions:
    options.allow("to", "endpoint", "overwrite")
    to, server = options.text("to"), options.text("endpoint")
    if to is None:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "an inventory needs a destination: to")
    is_path = to.startswith("/") and to.isprintable() and len(to.encode()) <= PATH_BYTES_MAX
    if not is_path and not (S3_URL.fullmatch(to) and not {".", ".."} & set(to.split("/"))):
        detail = "to must be the absolute path of a directory on the node's machine, or s3://bucket/prefix"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    if server is not None and is_path:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "endpoint is only for s3:// URLs; leave it out")
    try:
        checked = None if server is None else endpoint(server)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"endpoint: {error}") from None
    return InventoryOptions(to, checked, options.flag("overwrite"))


def _apply(_services: HttpServices, options: Options) -> ApplyOptions:
    options.allow("mailboxes", "dry_run", "rate", "texts")
    planned = planned_mailboxes(options.list("mailboxes"))
    return ApplyOptions(planned, options.flag("dry_run"), options.rate("mailboxes"), options.flag("texts"))


def _check_names(user: str | None, mailbox: str | None, peer: str | None) -> None:
    """Raise ValueError or InvalidNameError for impossible names."""
    if user is not None:
        check_owner_name(folded(user))
    if mailbox is not None:
        check_folder_name(mailbox)
    if peer is not None:
        sid(peer)


_ORDERS: Mapping[TaskName, Callable[[HttpServices, Options], TaskOptions]] = {
    "check": _check,
    "scrub": _scrub,
    "resync": _resync,
    "undelete": _undelete,
    "inventory": _inventory,
    "apply": _apply,
}


_DOCUMENTS: Mapping[TaskName, tuple[object, object]] = {
    "check": (CheckOptions, CheckStatus),
    "scrub": (ScrubOptions, CheckStatus),
    "resync": (ResyncOptions, ResyncStatus),
    "undelete": (UndeleteOptions, UndeleteStatus),
    "inventory": (InventoryOptions, InventoryStatus),
    "apply": (ApplyDocument, ApplyStatus),
}
"""Types of the options and of the report, by task."""


def _routes(name: TaskName) -> tuple[Route[HttpServices], ...]:
    path = f"/api/v1/{name}"
    takes, answer = _DOCUMENTS[name]
    return (
        Route("POST", path, partial(start, name=name), body_type=JSON_TYPE, answer=answer, takes=takes),
        Route("GET", path, partial(show, name=name), query=frozenset({"wait"}), answer=answer),
        Route("DELETE", path, partial(cancel, name=name), answer=answer),
    )


TASK_ROUTES = tuple(route for name in _ORDERS for route in _routes(name))
