"""Routes about log-ins: trying one, and the delays of attempts after failed ones.

| route | answers |
|---|---|
| `POST /api/v1/users/USER/try-login` | `Trial`: whether this name and password would let a client in, and why not |
| `GET /api/v1/penalties` | a list of `Penalty`: who is delayed, or would be by another failed attempt |
| `DELETE /api/v1/penalties?of=` | the number of penalties that end: those of a user or an address, or all |

POST takes `{"password": "..."}`, which is checked and neither kept nor logged, and if need be `"address"`, that of the
client. It counts as nobody's attempt.
"""

from __future__ import annotations

from dataclasses import asdict
from http import HTTPStatus

from replicator.http.documents import EndedDocument, TriedPassword
from replicator.http.message import JSON_TYPE, ProblemError, Request, Response, json_response
from replicator.http.routing import Route
from replicator.http.services import HttpServices
from replicator.http.tasks.options import Options
from replicator.runtime.addresses import plain_address
from replicator.users import Penalty, Trial


async def post_try_login(services: HttpServices, request: Request) -> Response:
    """Try a name and a password."""
    options = Options(request.body)
    options.allow("password", "address")
    password, address = options.text("password"), options.text("address")
    if password is None:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "password is missing")
    try:
        address = None if address is None else plain_address(address)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"address: {error}") from None
    return json_response(asdict(await services.oversight.try_login(request.path["user"], password, address)))


async def get_penalties(services: HttpServices, _request: Request) -> Response:
    """Return who is delayed."""
    return json_response([asdict(penalty) for penalty in services.oversight.penalties()])


async def delete_penalties(services: HttpServices, request: Request) -> Response:
    """Forget failed attempts."""
    return json_response({"ended": services.oversight.forgive(request.query.get("of"))})


LOGIN_ROUTES = (
    Route(
        "POST",
        "/api/v1/users/{user}/try-login",
        post_try_login,
        body_type=JSON_TYPE,
        answer=Trial,
        takes=TriedPassword,
    ),
    Route("GET", "/api/v1/penalties", get_penalties, is_private=True, answer=list[Penalty]),
    Route("DELETE", "/api/v1/penalties", delete_penalties, query=frozenset({"of"}), answer=EndedDocument),
)
