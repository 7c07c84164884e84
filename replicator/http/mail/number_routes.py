"""Routes of the numbers that a mailbox has at another server and keeps here, so that clients keep their caches.

| route | answers |
|---|---|
| `PUT /api/v1/users/USER/folders/NAME/numbers?uidnext=&modseq=` | `FolderCounts`: at least these numbers |
| `PUT /api/v1/users/USER/folders/NAME/uidvalidity?uidvalidity=` | the folder with it; without the parameter its own |

The rules are those of design section 3: numbers only rise, and a folder that has had mail keeps its UIDVALIDITY.
"""

from __future__ import annotations

from dataclasses import asdict

from protocol.values import UID_MAX
from replicator.http.documents import FolderDocument
from replicator.http.mail.folder_routes import counts, document
from replicator.http.message import Request, Response, json_response
from replicator.http.parameters import MODSEQ_MAX, number
from replicator.http.routing import Route
from replicator.http.services import HttpServices, known_user
from replicator.mail.mailstore import canonical_name
from replicator.status import FolderCounts


async def put_numbers(services: HttpServices, request: Request) -> Response:
    """Raise a folder's UIDNEXT and HIGHESTMODSEQ. Idempotent."""
    user, name = await known_user(services, request), canonical_name(request.path["name"])
    folder = await services.mail.folder(user, name)
    uidnext = number(request, "uidnext", UID_MAX, minimum=1) or 1
    await services.mail.raise_numbers(folder, uidnext, number(request, "modseq", MODSEQ_MAX) or 0)
    subscribed = name in await services.mail.subscriptions(user)
    return json_response(asdict(await counts(services, folder, is_subscribed=subscribed)))


async def put_uidvalidity(services: HttpServices, request: Request) -> Response:
    """Give a folder that never had mail another UIDVALIDITY, or its own again. Idempotent."""
    user, name = await known_user(services, request), canonical_name(request.path["name"])
    folder = await services.mail.folder(user, name)
    uidvalidity = number(request, "uidvalidity", UID_MAX, minimum=1)
    return json_response(document(await services.mail.keep_uidvalidity(folder, uidvalidity)))


_FOLDER = "/api/v1/users/{user}/folders/{name}"
NUMBER_ROUTES: tuple[Route[HttpServices], ...] = (
    Route(
        "PUT", f"{_FOLDER}/numbers", put_numbers, query=frozenset({"uidnext", "modseq"}),
        needed=frozenset({"uidnext"}), answer=FolderCounts,
    ),
    Route(
        "PUT", f"{_FOLDER}/uidvalidity", put_uidvalidity, query=frozenset({"uidvalidity"}), answer=FolderDocument,
    ),
)  # fmt: skip
