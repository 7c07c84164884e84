"""Routes of users: the cluster's table, and the mail of former users.

| route | answers |
|---|---|
| `GET /api/v1/users` | the users' names, wherever they come from |
| `POST /api/v1/users/USER/purge` | `PurgeResult`: what was removed of a former user's mail, and if there is more |

The others are for nodes with `users.source = "cluster"`; nodes whose users come from a file answer with 409.

| route | answers |
|---|---|
| `POST /api/v1/users` | 201 and the number of users added; 409 if one exists already |
| `PUT /api/v1/users/USER/password` | the user, with a new hash |
| `DELETE /api/v1/users/USER` | the user, who is removed; the mail stays |

POST takes `{"lines": ["alice:{ARGON2ID}...", ...], "replace": false}`: lines of a passwd-file, `LINES_MAX` at most, all
or none; with `replace`, users who exist get the new lines. PUT takes `{"hash": "{ARGON2ID}..."}`. Passwords themselves
never come here. An answer means that the change is on `durability.copies` nodes, and in force at this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from http import HTTPStatus
from itertools import islice

import trio

from protocol.values import UidSet
from replicator.errors import OtherClusterError
from replicator.http.message import JSON_TYPE, ProblemError, Request, Response, json_response
from replicator.http.options import Options
from replicator.http.routing import Route
from replicator.http.services import HttpServices, UserControl
from replicator.mail.annotations import AT_ONCE_MAX
from replicator.mail.mailstore import INBOX
from replicator.status import PurgeResult
from replicator.users import UserExistsError, UserUnknownError, folded
from replicator.users.passwd_file import check_user_name

LINES_MAX = 500
EXPUNGED_AT_ONCE = 1000
PURGE_S = 20.0  # less than the time limit of a request


async def get_users(services: HttpServices, _request: Request) -> Response:
    """Return the users that this node knows."""
    return json_response(services.list_users())


async def post_users(services: HttpServices, request: Request) -> Response:
    """Add users, or replace their lines."""
    options = Options(request.body)
    options.allow("lines", "replace")
    given = options.list("lines")
    lines = [line for line in given if isinstance(line, str)]
    if not 0 < len(lines) <= LINES_MAX or len(lines) != len(given):
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"lines must be a list of 1 to {LINES_MAX} strings")
    with _problems():
        await _table(services).add([line.encode() for line in lines], replace=options.flag("replace"))
    return json_response({"users": len(lines)}, HTTPStatus.CREATED)


async def put_password(services: HttpServices, request: Request) -> Response:
    """Set the hash of a user's password."""
    options = Options(request.body)
    options.allow("hash")
    hashed = options.text("hash")
    if hashed is None:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "hash is missing")
    with _problems():
        await _table(services).set_password(request.path["user"], hashed)
    return json_response({"user": request.path["user"]})


async def delete_user(services: HttpServices, request: Request) -> Response:
    """Remove a user."""
    with _problems():
        await _table(services).delete(request.path["user"])
    return json_response({"user": request.path["user"]})


async def post_purge(services: HttpServices, request: Request) -> Response:
    """Remove the mail, folders and annotations of somebody who is no user here, as far as the time allows."""
    name = request.path["user"]
    with _problems():
        check_user_name(name)  # what is no user's name may be an account of the cluster's own
    with suppress(OtherClusterError):  # whose mail has moved there
        if services.users.find(name) is not None:
            raise ProblemError(HTTPStatus.CONFLICT, f"{name!r} is a user: delete the user first")
    user, mail = folded(name), services.mail
    shown = [mailbox for mailbox in await services.status.mailboxes(user) if mailbox.messages or mailbox.name != INBOX]
    folders = messages = 0
    with trio.move_on_after(PURGE_S):
        for mailbox in sorted(shown, key=lambda mailbox: mailbox.name, reverse=True):  # what is below others first
            folder = await mail.folder(user, mailbox.name)
            view = await mail.open_mailbox(folder)
            while uids := list(islice(view.messages, EXPUNGED_AT_ONCE)):
                await mail.expunge(view, UidSet.of(uids))
                messages += len(uids)
            if mailbox.name != INBOX:
                await mail.delete_folder(user, mailbox.name)
                folders += 1
        for subscribed in await mail.subscriptions(user):
            await mail.subscribe(user, subscribed, subscribed=False)
        if annotations := await mail.annotations(user, None):
            await mail.annotate(user, None, dict.fromkeys(islice(annotations, AT_ONCE_MAX)))
        return json_response(asdict(PurgeResult(user, folders, messages, more=len(annotations) > AT_ONCE_MAX)))
    return json_response(asdict(PurgeResult(user, folders, messages, more=True)))


def _table(services: HttpServices) -> UserControl:
    if services.user_table is None:
        raise ProblemError(
            HTTPStatus.CONFLICT,
            'users of this node come from its passwd-file: edit that, or set `source = "cluster"` in [users]',
        )
    return services.user_table


@contextmanager
def _problems() -> Iterator[None]:
    try:
        yield
    except UserExistsError as error:
        raise ProblemError(HTTPStatus.CONFLICT, str(error)) from None
    except UserUnknownError as error:
        raise ProblemError(HTTPStatus.NOT_FOUND, str(error)) from None
    except UnicodeEncodeError:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "a line contains surrogates, which are not characters") from None
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    except OSError as error:
        raise ProblemError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the change is made, but this node cannot write its file of users: {error.strerror}; it tries again",
        ) from None


USER_ROUTES = (
    Route("GET", "/api/v1/users", get_users),
    Route("POST", "/api/v1/users/{user}/purge", post_purge),
    Route("POST", "/api/v1/users", post_users, body_type=JSON_TYPE),
    Route("PUT", "/api/v1/users/{user}/password", put_password, body_type=JSON_TYPE),
    Route("DELETE", "/api/v1/users/{user}", delete_user),
)
