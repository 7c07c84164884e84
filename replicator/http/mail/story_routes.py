"""Routes that tell what happened to mailboxes and mails. They change nothing.

| route | answers |
|---|---|
| `GET /api/v1/users/USER/folders/NAME` | `MailboxStory`: all that this node knows of the folder |
| `GET /api/v1/users/USER/folders/NAME/log?last=&since_ms=` | `LoggedHistory` of the folder, from this node's log |
| `GET /api/v1/users/USER/log?last=&since_ms=` | that of the user's folder tree |
| `GET /api/v1/users/USER/folders/NAME/story?uid=` | `MailStory` of the mail that has or had this UID in the folder |
| the same with `?guid=` or `?message_id=` | that of the mail with this GUID (hexadecimal) or Message-ID |

They tell of folders that are deleted, and of users who are gone. 404: this node knows nothing of the folder. A story
without lives: it knows nothing of the mail. `log` and `story` need the role `operate`: they tell when a user has read
and removed which mail. The data types are in `replicator.stories`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from string import hexdigits
from typing import TypeVar

from protocol.values import UID_MAX
from replicator.errors import FolderNotFoundError
from replicator.http.message import ProblemError, Request, Response, encode_json
from replicator.http.parameters import TIME_MAX_MS, message_id, no_such_user, number
from replicator.http.routing import Route
from replicator.http.services import HttpServices
from replicator.mail.mailstore import canonical_name
from replicator.stories import LAST_DEFAULT, LAST_MAX, AskedMail, LoggedHistory, MailboxStory, MailStory
from resync.entry import ID_BYTES

T = TypeVar("T", LoggedHistory, MailboxStory, MailStory)


async def get_log(services: HttpServices, request: Request) -> Response:
    """Return the history of a folder, or without a name that of the user's folder tree."""
    name = request.path.get("name")
    mailbox = None if name is None else canonical_name(name)
    last = number(request, "last", LAST_MAX, minimum=1) or LAST_DEFAULT
    since_ms = number(request, "since_ms", TIME_MAX_MS) or 0
    return await _told(
        services, request, lambda user: services.stories.history(user, mailbox, last=last, since_ms=since_ms)
    )


async def get_mailbox(services: HttpServices, request: Request) -> Response:
    """Return what is known of a folder."""
    name = canonical_name(request.path["name"])
    return await _told(services, request, lambda user: services.stories.mailbox(user, name))


async def get_story(services: HttpServices, request: Request) -> Response:
    """Return the story of a mail."""
    name, asked = canonical_name(request.path["name"]), _asked(request)
    return await _told(services, request, lambda user: services.stories.mail(user, name, asked))


def _asked(request: Request) -> AskedMail:
    """Return which mail is asked for. Raises ProblemError."""
    if len(request.query) != 1:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "query: name the mail by one of uid, guid and message_id")
    guid, named = request.query.get("guid"), message_id(request)
    if guid is not None:
        if len(guid) != 2 * ID_BYTES or not set(guid) <= set(hexdigits):
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: guid must be {ID_BYTES} bytes in hexadecimal")
        return AskedMail(guid=bytes.fromhex(guid))
    if named is not None:
        return AskedMail(message_id=named)
    return AskedMail(uid=number(request, "uid", UID_MAX, minimum=1))


async def _told(services: HttpServices, request: Request, tell: Callable[[str], Awaitable[T]]) -> Response:
    """Return a story of the user's mail, also of a user who is gone. Raises ProblemError if nobody has the name."""
    name = request.path["user"]
    try:
        story = await tell(await services.owner(name))
    except FolderNotFoundError:
        if await services.users.ask(name) is None:
            raise no_such_user(name) from None
        raise
    encode = partial(_encoded, story)
    return Response(HTTPStatus.OK, await services.run_in_thread(encode))


def _encoded(story: LoggedHistory | MailboxStory | MailStory) -> bytes:
    return encode_json(asdict(story))


_STORY = frozenset({"uid", "guid", "message_id"})
_LOG = frozenset({"last", "since_ms"})
STORY_ROUTES: tuple[Route[HttpServices], ...] = (
    Route("GET", "/api/v1/users/{user}/folders/{name}", get_mailbox, answer=MailboxStory),
    Route("GET", "/api/v1/users/{user}/folders/{name}/log", get_log, query=_LOG, is_private=True, answer=LoggedHistory),
    Route(
        "GET", "/api/v1/users/{user}/folders/{name}/story", get_story, query=_STORY, is_private=True, answer=MailStory
    ),
    Route("GET", "/api/v1/users/{user}/log", get_log, query=_LOG, is_private=True, answer=LoggedHistory),
)
