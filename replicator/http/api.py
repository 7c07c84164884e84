"""Routes of the HTTP door and their handlers.

| route | answers |
|---|---|
| `GET /healthz` | 200 while mail here can be read and changed, else 503 with the reasons; open to everybody |
| `GET /livez` | 200: the process runs |
| `GET /metrics` | Prometheus text |
| `GET /api/v1/status` | `NodeStatus` |
| `GET /api/v1/mailboxes?user=` | `MailboxStatus` of each mailbox; 404 if there is no such user |
| `GET /api/v1/users/USER/folders/NAME/master` | the folder's master; null: this node has not needed it yet |
| `PUT /api/v1/users/USER/folders/NAME/master?node=` | the master, which that node is now |
| `GET /api/v1/users/USER/quota` | `QuotaStatus` |
| `POST /api/v1/checkpoint` | `CheckpointResult`: 200 when all changes are written, 202 if that takes longer |
| `POST /api/v1/reload` | `CertificateStatus` of each certificate, read again; 409 if one cannot be used |
| `POST /api/v1/search/rebuild` | 202 and `SearchTextStatus` of what is deleted; 409 if the node is to keep none |
| `GET /api/v1/users/USER/messages?mailbox=&after=` | UID, SHA-256 and GUID of messages above a UID, one page |
| `POST /api/v1/users/USER/messages?mailbox=&flags=&received_ms=&uid=` | 201 and the UID of the message in the body |
| `POST /api/v1/users/USER/messages/batch?mailbox=` | 201 and the UIDs of the messages in the body; all or none |
| `GET /api/v1/openapi.json` | all routes, as an OpenAPI document |

A folder name in a path is one segment (`Archive%2F2024`); `flags` are separated by spaces, in UTF-8 and percent-encoded
like everything else. A batch is MessagePack: an array with `[received_ms or nil, [flag, ...], body, uid or nil, guid or
nil]` for each message, `BATCH_MAX` at most; the last two values may be left out. `uid` is the UID at another server:
the message gets it unless the folder's UIDNEXT is above it. `guid` are the 16 octets of its GUID: if the folder has a
message with it, this one is not stored, and the answer has the UID of the other one. Folders are in
`mail.folder_routes`, mail to take away in `mail.mail_routes`, mail to remove in `mail.expunge_routes`, numbers of
mailboxes in `mail.number_routes`, changes of an import in `mail.change_routes`, long-running operations in
`tasks.routes`, what happened to mail in `mail.story_routes`, traces of the protocol in `trace_routes`, sessions in
`session_routes`, users in `users.routes`, answers for proxies in `users.proxy_routes`, the page for operators in
`page`.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import NamedTuple, cast

import msgpack
import trio
from prometheus_client import CONTENT_TYPE_LATEST

from protocol.values import UID_MAX
from replicator.errors import ConfigError
from replicator.http.documents import (
    BatchDocument,
    HealthDocument,
    LivenessDocument,
    MasterDocument,
    MessagesDocument,
    SavedDocument,
)
from replicator.http.mail.change_routes import CHANGE_ROUTES
from replicator.http.mail.expunge_routes import EXPUNGE_ROUTES
from replicator.http.mail.folder_routes import FOLDER_ROUTES
from replicator.http.mail.mail_routes import MAIL_ROUTES
from replicator.http.mail.number_routes import NUMBER_ROUTES
from replicator.http.mail.story_routes import STORY_ROUTES
from replicator.http.message import (
    MSGPACK_TYPE,
    Caller,
    ProblemError,
    Request,
    Response,
    encode_json,
    encode_list,
    json_response,
)
from replicator.http.openapi import openapi_document
from replicator.http.page.routes import PAGE_ROUTES
from replicator.http.parameters import TIME_MAX_MS, no_such_user, number
from replicator.http.routing import Route
from replicator.http.services import HttpServices, known_user
from replicator.http.session_routes import SESSION_ROUTES
from replicator.http.tasks.routes import TASK_ROUTES
from replicator.http.trace_routes import TRACE_ROUTES
from replicator.http.users.login_routes import LOGIN_ROUTES
from replicator.http.users.proxy_routes import PROXY_ROUTES
from replicator.http.users.routes import USER_ROUTES
from replicator.mail.flags import settable_in
from replicator.mail.mailstore import INBOX, NewMessage, SavedMessage, canonical_name
from replicator.runtime.metrics import exposition
from replicator.status import (
    CertificateStatus,
    CheckpointOutcome,
    CheckpointResult,
    CheckpointStatus,
    MailboxStatus,
    NodeStatus,
    QuotaStatus,
    SearchTextStatus,
)
from resync.entry import ID_BYTES

MESSAGE_TYPE = "message/rfc822"
BATCH_MAX = 1000
VALUES_MIN, VALUES_MAX = 3, 5  # of a message in a batch
MESSAGES_PAGE = 5000  # some 700 KiB of JSON: a few milliseconds of the event loop
CHECKPOINT_WAIT_S = 30.0  # less than the time limit of a request, and than callers wait for an answer


async def get_health(services: HttpServices, request: Request) -> Response:
    """Return the node's readiness: 200 if clients are served well here. Strangers are not told the reasons."""
    reasons = list(await services.status.healthy())
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    told = {} if request.caller is Caller.STRANGER else {"reasons": reasons}
    return json_response({"sid": services.sid, "healthy": not reasons, **told}, status)


async def get_liveness(services: HttpServices, _request: Request) -> Response:
    """Return 200 while the process runs. A restart would not repair the problems that `/healthz` reports."""
    return json_response({"sid": services.sid})


async def get_metrics(services: HttpServices, _request: Request) -> Response:
    """Return the registry in Prometheus's text format."""
    return Response(HTTPStatus.OK, exposition(services.registry), CONTENT_TYPE_LATEST)


async def get_status(services: HttpServices, _request: Request) -> Response:
    """Return the status of the node and its links."""
    return json_response(asdict(await services.status.node_status()))


async def get_mailboxes(services: HttpServices, request: Request) -> Response:
    """Return all mailboxes of the node, or one user's. The mail of a user who is gone is still shown."""
    name = request.query.get("user")
    user = None if name is None else await services.owner(name)
    mailboxes = await services.status.mailboxes(user)
    if name is not None and not mailboxes and await services.user_of(name) is None:
        raise no_such_user(name)
    encode = partial(encode_list, mailboxes, asdict)
    return Response(HTTPStatus.OK, await services.run_in_thread(encode))


async def get_quota(services: HttpServices, request: Request) -> Response:
    """Return the usage at this node and the limits of the user's mail."""
    user = await known_user(services, request)
    quota = await services.mail.quota(user)
    limits = quota.limits
    status = QuotaStatus(user, quota.storage_bytes, limits.storage_bytes, quota.messages, limits.messages)
    return json_response(asdict(status))


async def get_master(services: HttpServices, request: Request) -> Response:
    """Return the folder's master."""
    folder = await services.mail.folder(await known_user(services, request), canonical_name(request.path["name"]))
    return json_response({"master": await services.masters.master_of(folder)})


async def put_master(services: HttpServices, request: Request) -> Response:
    """Make a node the folder's master. Idempotent."""
    folder = await services.mail.folder(await known_user(services, request), canonical_name(request.path["name"]))
    node = request.query.get("node", services.sid)
    if node not in {services.sid, *services.peers}:
        raise ProblemError(HTTPStatus.NOT_FOUND, f"no node {node!r} is configured at {services.sid}")
    await services.masters.move_to(folder, node)
    return json_response({"master": node})


async def post_checkpoint(services: HttpServices, _request: Request) -> Response:
    """Write checkpoints of all changes. Idempotent."""
    asked_ms = services.clock_ms()
    before_ms = services.checkpoints.checkpoint_status().made_ms
    with trio.move_on_after(CHECKPOINT_WAIT_S):
        status = await services.checkpoints.checkpoint_now()
        # Check both: a node that has just started does not know the old manifest yet, and a clock can be set back.
        is_new = status.made_ms not in {None, before_ms} and (status.made_ms or 0) >= asked_ms
        if is_new:
            return _checkpoint_response(status, "written")
        is_waiting = not status.in_force and await services.status.has_unsaved()
        return _checkpoint_response(status, "waiting" if is_waiting else "unchanged")
    return _checkpoint_response(services.checkpoints.checkpoint_status(), "running", HTTPStatus.ACCEPTED)


async def post_reload(services: HttpServices, _request: Request) -> Response:
    """Read configuration and certificates again. Idempotent."""
    try:
        certificates = await services.reload()
    except ConfigError as error:
        raise ProblemError(
            HTTPStatus.CONFLICT, f"configuration, certificates and keys stay as they were: {error}"
        ) from error
    return json_response([asdict(certificate) for certificate in certificates])


async def post_search_rebuild(services: HttpServices, _request: Request) -> Response:
    """Make all search texts anew. Idempotent, but each time the work is done again."""
    if services.search_texts is None:
        raise ProblemError(HTTPStatus.CONFLICT, "this node keeps no search texts: `full_text` in [search] is false")
    before = services.search_texts.status or SearchTextStatus(bodies=0, waiting=0, size_bytes=0)
    services.search_texts.begin_anew()
    return json_response(asdict(before), HTTPStatus.ACCEPTED)


async def list_messages(services: HttpServices, request: Request) -> Response:
    """Return UID, hash and GUID of a folder's messages, for `import` to skip. `more`: ask again after the last UID."""
    user = await known_user(services, request)
    after = number(request, "after", UID_MAX) or 0
    folder = await services.mail.folder(user, canonical_name(request.query.get("mailbox", INBOX)))
    messages = (await services.mail.open_mailbox(folder)).messages
    page = [messages[uid] for uid in islice(messages.irange(minimum=after + 1), MESSAGES_PAGE)]
    return json_response(
        {
            "uidvalidity": folder.uidvalidity,
            "messages": [
                {"uid": message.uid, "sha256": message.content_hash.hex(), "guid": message.guid.hex()}
                for message in page
            ],
            "more": len(page) == MESSAGES_PAGE,
        }
    )


async def post_message(services: HttpServices, request: Request) -> Response:
    """Store the message in the request's body. UID null: this node does not show it yet.

    In the query, `uid` is the UID that the message has at another server: it gets this one unless UIDNEXT is above it.
    """
    user = await known_user(services, request)
    if not request.body:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "the message is empty")
    folder = await services.mail.folder(user, canonical_name(request.query.get("mailbox", INBOX)))
    message = NewMessage(
        body=request.body,
        flags=await settable_in(services.mail, folder, request.query.get("flags", "").split()),
        received_ms=number(request, "received_ms", TIME_MAX_MS),
        uid=number(request, "uid", UID_MAX, minimum=1),
    )
    saved = await services.mail.save(folder, message)
    return json_response({"uidvalidity": saved.uidvalidity, "uid": _shown_uid(saved)}, HTTPStatus.CREATED)


async def post_batch(services: HttpServices, request: Request) -> Response:
    """Store the messages in the request's body, in their order, all or none. For UIDs see `post_message`.

    A message whose GUID the folder has already is not stored, and the answer has the UID of the one that is there.
    """
    user = await known_user(services, request)
    folder = await services.mail.folder(user, canonical_name(request.query.get("mailbox", INBOX)))
    batch = await services.run_in_thread(partial(_batch, request.body))
    settable = {flags: await settable_in(services.mail, folder, flags) for flags in {one.flags for one in batch}}
    messages = [NewMessage(one.body, settable[one.flags], one.received_ms, one.uid, one.guid) for one in batch]
    saved = await services.mail.save_all(folder, messages)
    return json_response(
        {"uidvalidity": saved[-1].uidvalidity, "uids": [_shown_uid(one) for one in saved]}, HTTPStatus.CREATED
    )


async def get_openapi(services: HttpServices, _request: Request) -> Response:
    """Return these routes as an OpenAPI document."""
    return Response(HTTPStatus.OK, await services.run_in_thread(lambda: encode_json(openapi_document(ROUTES))))  # 50 ms


def _shown_uid(saved: SavedMessage) -> int | None:
    return saved.uid if saved.shown else None


class _Batched(NamedTuple):
    """A message of a batch. `uid`: its UID at another server."""

    received_ms: int | None
    flags: tuple[str, ...]
    body: bytes
    uid: int | None
    guid: bytes | None


def _batch(packed: bytes) -> list[_Batched]:
    """Read the messages of a batch. Raises ProblemError."""
    try:
        found = cast("object", msgpack.unpackb(packed, use_list=False, max_array_len=BATCH_MAX))
    except (ValueError, msgpack.UnpackException) as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"the batch is not MessagePack: {error}") from None
    if not isinstance(found, tuple) or not 0 < len(found) <= BATCH_MAX:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"a batch must be an array of 1 to {BATCH_MAX} messages")
    batch = [_batched(number, one) for number, one in enumerate(found, 1)]
    guids = [one.guid for one in batch if one.guid is not None]
    if len({*guids}) < len(guids):
        raise ProblemError(HTTPStatus.BAD_REQUEST, "two messages of the batch have one GUID")
    return batch


def _batched(number: int, one: object) -> _Batched:
    if isinstance(one, tuple) and VALUES_MIN <= len(one) <= VALUES_MAX:
        match (*one, None, None)[:VALUES_MAX]:
            case (
                None | int() as received_ms,
                tuple() as flags,
                bytes() as body,
                None | int() as uid,
                None | bytes() as guid,
            ) if (
                (received_ms is None or _is_number(received_ms, 0, TIME_MAX_MS))
                and (uid is None or _is_number(uid, 1, UID_MAX))
                and (guid is None or len(guid) == ID_BYTES)
                and all(isinstance(flag, str) for flag in flags)
                and body
            ):
                return _Batched(received_ms, flags, body, uid, guid)
    expected = "[received_ms or nil, [flag, ...], body, uid or nil, guid or nil]"
    raise ProblemError(HTTPStatus.BAD_REQUEST, f"message {number} of the batch is not {expected}")


def _is_number(value: int, low: int, high: int) -> bool:
    return not isinstance(value, bool) and low <= value <= high


def _checkpoint_response(
    status: CheckpointStatus, outcome: CheckpointOutcome, code: HTTPStatus = HTTPStatus.OK
) -> Response:
    return json_response(asdict(CheckpointResult(**asdict(status), outcome=outcome)), code)


ROUTES: tuple[Route[HttpServices], ...] = (
    Route("GET", "/healthz", get_health, is_open=True, answer=HealthDocument, also=(HTTPStatus.SERVICE_UNAVAILABLE,)),
    Route("GET", "/livez", get_liveness, answer=LivenessDocument),
    Route("GET", "/metrics", get_metrics),
    Route("GET", "/api/v1/status", get_status, answer=NodeStatus),
    Route("GET", "/api/v1/mailboxes", get_mailboxes, query=frozenset({"user"}), answer=list[MailboxStatus]),
    Route("GET", "/api/v1/users/{user}/quota", get_quota, answer=QuotaStatus),
    Route("GET", "/api/v1/users/{user}/folders/{name}/master", get_master, answer=MasterDocument),
    Route(
        "PUT",
        "/api/v1/users/{user}/folders/{name}/master",
        put_master,
        query=frozenset({"node"}),
        answer=MasterDocument,
    ),
    Route("POST", "/api/v1/checkpoint", post_checkpoint, answer=CheckpointResult),
    Route("POST", "/api/v1/reload", post_reload, answer=list[CertificateStatus]),
    Route("POST", "/api/v1/search/rebuild", post_search_rebuild, answer=SearchTextStatus),
    Route(
        "GET",
        "/api/v1/users/{user}/messages",
        list_messages,
        query=frozenset({"mailbox", "after"}),
        answer=MessagesDocument,
    ),
    Route(
        "POST",
        "/api/v1/users/{user}/messages",
        post_message,
        query=frozenset({"mailbox", "flags", "received_ms", "uid"}),
        body_type=MESSAGE_TYPE,
        answer=SavedDocument,
    ),
    Route(
        "POST",
        "/api/v1/users/{user}/messages/batch",
        post_batch,
        query=frozenset({"mailbox"}),
        body_type=MSGPACK_TYPE,
        answer=BatchDocument,
    ),
    *TASK_ROUTES,
    *FOLDER_ROUTES,
    *MAIL_ROUTES,
    *EXPUNGE_ROUTES,
    *NUMBER_ROUTES,
    *CHANGE_ROUTES,
    *STORY_ROUTES,
    *TRACE_ROUTES,
    *SESSION_ROUTES,
    *PROXY_ROUTES,
    *USER_ROUTES,
    *LOGIN_ROUTES,
    *PAGE_ROUTES,
    Route("GET", "/api/v1/openapi.json", get_openapi, answer=dict[str, object]),
)
