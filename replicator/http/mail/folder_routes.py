"""Routes of a user's folders, under the rules of IMAP.

| route | answers |
|---|---|
| `GET /api/v1/users/USER/folders` | `FolderList` |
| `PUT /api/v1/users/USER/folders/NAME?new=&use=` | 201 if it was created, 200 (with `new=true` 409) if it existed |
| `PUT /api/v1/users/USER/folders/NAME/name?to=` | the folder, renamed with all below it; INBOX stays, empty |
| `DELETE /api/v1/users/USER/folders/NAME` | the folder, which is deleted with its mail; those below it stay |
| `PUT`, `DELETE /api/v1/users/USER/subscriptions/NAME` | the name, to which the user is or is not subscribed |

A folder name in a path is one segment (`Archive%2F2024`). Each change is seen by clients as if another client of the
user had made it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from http import HTTPStatus

import trio

from replicator.errors import FolderExistsError, FolderNotFoundError
from replicator.http.documents import FolderDocument, SubscriptionDocument
from replicator.http.message import ProblemError, Request, Response, encode_json, json_response
from replicator.http.parameters import flag
from replicator.http.routing import Route
from replicator.http.services import HttpServices, known_user
from replicator.mail.annotations import SPECIAL_USES
from replicator.mail.mailstore import SEPARATOR, Folder, canonical_name, check_new_name
from replicator.status import FolderCounts, FolderList


async def list_folders(services: HttpServices, request: Request) -> Response:
    """Return the user's folders, and the subscriptions without a folder."""
    user = await known_user(services, request)
    await services.mail.catch_up(user)
    subscribed = {*await services.mail.subscriptions(user)}
    folders = dict[str, FolderCounts]()
    for folder in await services.mail.folders(user):
        with suppress(FolderNotFoundError):  # it has been deleted meanwhile
            folders[folder.name] = await _counts(services, folder, is_subscribed=folder.name in subscribed)
        await trio.lowlevel.checkpoint()
    found = FolderList(user, tuple(folders.values()), tuple(sorted(subscribed - {*folders})), services.keep_expunged_s)
    return Response(HTTPStatus.OK, await services.run_in_thread(lambda: encode_json(asdict(found))))


async def _counts(services: HttpServices, folder: Folder, *, is_subscribed: bool) -> FolderCounts:
    status = await services.mail.status(folder)
    return FolderCounts(
        name=folder.name,
        mailbox_id=folder.mailbox_id.hex(),
        uidvalidity=folder.uidvalidity,
        uidnext=status.uidnext,
        subscribed=is_subscribed,
        messages=status.messages,
        unseen=status.unseen,
        size_bytes=status.size_bytes,
    )


async def put_folder(services: HttpServices, request: Request) -> Response:
    """Ensure that a folder exists: idempotent. If it must be new, create it."""
    user, name = await known_user(services, request), canonical_name(request.path["name"])
    must_be_new, uses = flag(request, "new"), _uses(request)
    if must_be_new:
        name = name.removesuffix(SEPARATOR)  # as IMAP clients may write it
        check_new_name(name)
    else:
        try:
            return json_response(document(await services.mail.folder(user, name)))
        except FolderNotFoundError:
            pass
    try:
        folder = await services.mail.create_folder(user, name, uses)
    except FolderExistsError:
        if must_be_new:
            raise
        return json_response(document(await services.mail.folder(user, name)))  # another request was faster
    return json_response(document(folder), HTTPStatus.CREATED)


def _uses(request: Request) -> str | None:
    """Return the special uses for a new folder, spelled as clients are shown them."""
    known = {use.lower(): use for use in SPECIAL_USES}
    uses = request.query.get("use", "").split()
    for use in uses:
        if use.lower() not in known:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"use: {use!r} is none; known: {', '.join(SPECIAL_USES)}")
    return " ".join(known[use.lower()] for use in uses) or None


async def put_name(services: HttpServices, request: Request) -> Response:
    """Rename a folder."""
    user, old = await known_user(services, request), canonical_name(request.path["name"])
    new = canonical_name(request.query["to"]).removesuffix(SEPARATOR)
    check_new_name(new)
    await services.mail.catch_up(user)
    await services.mail.rename_folder(user, old, new)
    return json_response(document(await services.mail.folder(user, new)))


async def delete_folder(services: HttpServices, request: Request) -> Response:
    """Delete a folder with its mail."""
    user, name = await known_user(services, request), canonical_name(request.path["name"])
    await services.mail.catch_up(user, name)  # another folder may have this name by now
    folder = await services.mail.folder(user, name)
    await services.mail.delete_folder(user, name)
    return json_response(document(folder))


async def put_subscription(services: HttpServices, request: Request) -> Response:
    """Subscribe the user to a name. There need not be such a folder. Idempotent."""
    return await _subscribe(services, request, subscribed=True)


async def delete_subscription(services: HttpServices, request: Request) -> Response:
    """End the subscription to a name. Idempotent."""
    return await _subscribe(services, request, subscribed=False)


async def _subscribe(services: HttpServices, request: Request, *, subscribed: bool) -> Response:
    user, name = await known_user(services, request), canonical_name(request.path["name"])
    await services.mail.subscribe(user, name, subscribed=subscribed)
    return json_response({"name": name, "subscribed": subscribed})


def document(folder: Folder) -> dict[str, object]:
    """Return a `FolderDocument`."""
    return {"name": folder.name, "mailbox_id": folder.mailbox_id.hex(), "uidvalidity": folder.uidvalidity}


_FOLDER, _SUBSCRIPTION = "/api/v1/users/{user}/folders/{name}", "/api/v1/users/{user}/subscriptions/{name}"
_TO = frozenset({"to"})
FOLDER_ROUTES: tuple[Route[HttpServices], ...] = (
    Route("GET", "/api/v1/users/{user}/folders", list_folders, answer=FolderList),
    Route("PUT", _FOLDER, put_folder, query=frozenset({"new", "use"}), answer=FolderDocument),
    Route("PUT", f"{_FOLDER}/name", put_name, query=_TO, needed=_TO, answer=FolderDocument),
    Route("DELETE", _FOLDER, delete_folder, answer=FolderDocument),
    Route("PUT", _SUBSCRIPTION, put_subscription, answer=SubscriptionDocument),
    Route("DELETE", _SUBSCRIPTION, delete_subscription, answer=SubscriptionDocument),
)
