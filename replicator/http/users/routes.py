"""Routes of users: the cluster's table, and the mail of former users.

| route | answers |
|---|---|
| `GET /api/v1/users` | the users' names, wherever they come from |
| `GET /api/v1/accounts` | a list of `Account`: the users, and what their lines say |
| `GET /api/v1/users/USER` | the `Account` of a user, by the name of the mail, a log-in name or an address |
| `POST /api/v1/users/USER/purge` | `PurgeResult`: what was removed of a former user's mail, and if there is more |

The others are for nodes with `users.source = "cluster"`; nodes whose users come from a file answer with 409.

| route | answers |
|---|---|
| `POST /api/v1/users` | 201 and the number of users added; 409 if one exists already |
| `PUT /api/v1/users/USER/password` | the user, with a new hash |
| `PUT /api/v1/users/USER/disabled` | the user, who may no longer log in, or may again, and `MailNames` |
| `PUT /api/v1/users/USER/name?to=` | the user by the new log-in name, and the user whose mail that opens |
| `DELETE /api/v1/users/USER` | the user, who is removed, and `MailNames`; the mail stays |

POST takes `{"lines": ["alice:{ARGON2ID}...", ...], "replace": false}`: lines of a passwd-file, `LINES_MAX` at most, all
or none; with `replace`, users who exist get the new lines. PUT takes `{"hash": "{ARGON2ID}..."}`, or
`{"disabled": true}`. `MailNames` say whose mail the name opens, and which other names do. Nobody is renamed, with 503,
unless all nodes are linked: two users might get one name. Passwords themselves never come here. An answer means that
the change is on `durability.copies` nodes, and in force at this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus

from replicator.http.documents import (
    DeletedDocument,
    Disabled,
    DisabledDocument,
    NewPassword,
    NewUsers,
    RenamedDocument,
    UserDocument,
    UsersDocument,
)
from replicator.http.message import JSON_TYPE, ProblemError, Request, Response, json_response
from replicator.http.parameters import no_such_user
from replicator.http.routing import Route
from replicator.http.services import HttpServices, UserControl
from replicator.http.tasks.options import Options
from replicator.http.users.purge import purge
from replicator.http.users.reach import check_all_reached
from replicator.mail.annotations import USER_TABLE
from replicator.status import PurgeResult
from replicator.users import Account, UserExistsError, UserUnknownError, folded

LINES_MAX = 200  # each may have 4 KiB, and one change to the table 2 MiB


async def get_users(services: HttpServices, _request: Request) -> Response:
    """Return the users that this node knows."""
    return json_response(sorted(services.oversight.users()))


async def get_accounts(services: HttpServices, _request: Request) -> Response:
    """Return the users that this node knows, and what their lines say."""
    found = sorted(services.oversight.accounts(), key=lambda account: account.user)
    return json_response([asdict(account) for account in found])


async def get_user(services: HttpServices, request: Request) -> Response:
    """Return a user, by any of the user's names. A server that knows the users is asked."""
    account = await services.oversight.account(services.oversight.name_meant(request.path["user"]))
    if account is None:
        raise no_such_user(request.path["user"])
    return json_response(asdict(account))


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


async def put_disabled(services: HttpServices, request: Request) -> Response:
    """Disable a user, or let the user log in again."""
    options = Options(request.body)
    options.allow("disabled")
    disabled = options.needed_flag("disabled")
    with _problems():
        names = await _table(services).set_disabled(request.path["user"], disabled=disabled)
    return json_response({"user": request.path["user"], "disabled": disabled, **asdict(names)})


async def put_name(services: HttpServices, request: Request) -> Response:
    """Give a user another log-in name."""
    to, table = request.query["to"], _table(services)
    risk = "given a name to somebody else"
    await check_all_reached(services, USER_TABLE, refusal="nobody is renamed", risk=risk)
    with _problems():
        mail_user = await table.rename(request.path["user"], to)
    return json_response({"user": folded(to), "mail_user": mail_user})


async def delete_user(services: HttpServices, request: Request) -> Response:
    """Remove a user."""
    with _problems():
        names = await _table(services).delete(request.path["user"])
    return json_response({"user": request.path["user"], **asdict(names)})


async def post_purge(services: HttpServices, request: Request) -> Response:
    """Remove a former user's mail, as far as the time allows."""
    return json_response(asdict(await purge(services, request.path["user"])))


def _table(services: HttpServices) -> UserControl:
    if services.user_table is None:
        raise ProblemError(
            HTTPStatus.CONFLICT,
            "users of this node come from its passwd-file, or from a server: change them there, or set"
            ' `source = "cluster"` in [users]',
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


_TO = frozenset({"to"})
USER_ROUTES = (
    Route("GET", "/api/v1/users", get_users, answer=list[str]),
    Route("GET", "/api/v1/accounts", get_accounts, is_private=True, answer=list[Account]),
    Route("GET", "/api/v1/users/{user}", get_user, is_private=True, answer=Account),
    Route("POST", "/api/v1/users/{user}/purge", post_purge, answer=PurgeResult),
    Route("POST", "/api/v1/users", post_users, body_type=JSON_TYPE, answer=UsersDocument, takes=NewUsers),
    Route(
        "PUT",
        "/api/v1/users/{user}/password",
        put_password,
        body_type=JSON_TYPE,
        answer=UserDocument,
        takes=NewPassword,
    ),
    Route(
        "PUT",
        "/api/v1/users/{user}/disabled",
        put_disabled,
        body_type=JSON_TYPE,
        answer=DisabledDocument,
        takes=Disabled,
    ),
    Route("PUT", "/api/v1/users/{user}/name", put_name, query=_TO, needed=_TO, answer=RenamedDocument),
    Route("DELETE", "/api/v1/users/{user}", delete_user, answer=DeletedDocument),
)
