"""Routes of the numbers that a mailbox has at another server and keeps here, so that clients keep their caches.

| route | answers |
|---|---|
| `PUT /api/v1/users/USER/folders/NAME/numbers?uidnext=&modseq=` | its numbers, at least these |
| `PUT /api/v1/users/USER/folders/NAME/uidvalidity?uidvalidity=` | the folder with it; without the parameter its own |

The rules are those of design section 3: numbers only rise, and a folder that has had mail keeps its UIDVALIDITY. An
import asks for the UIDVALIDITY, raises HIGHESTMODSEQ, brings the mail, and at last raises UIDNEXT.
"""

from __future__ import annotations

from protocol.values import UID_MAX
from replicator.http.documents import FolderDocument, NumbersDocument
from replicator.http.mail.folder_routes import document
from replicator.http.message import Request, Response, json_response
from replicator.http.parameters import MODSEQ_MAX, number
from replicator.http.routing import Route
from replicator.http.services import HttpServices, known_user
from replicator.mail.mailstore import ANY_DOVECOT, canonical_name


async def put_numbers(services: HttpServices, request: Request) -> Response:
    """Raise a folder's UIDNEXT and HIGHESTMODSEQ. Idempotent."""
    user, name = await known_user(services, request), canonical_name(request.path["name"])
    folder = await services.mail.folder(user, name)
    uidnext = number(request, "uidnext", UID_MAX, minimum=1) or 1
    await services.mail.raise_numbers(folder, uidnext, number(request, "modseq", MODSEQ_MAX) or 0)
    status = await services.mail.status(folder)
    numbers = NumbersDocument(
        uidvalidity=folder.uidvalidity, uidnext=status.uidnext, highestmodseq=status.highestmodseq
    )
    return json_response(numbers)


async def put_uidvalidity(services: HttpServices, request: Request) -> Response:
    """Give a folder that never had mail another UIDVALIDITY, or its own again. Idempotent."""
    user, name = await known_user(services, request), canonical_name(request.path["name"])
    folder = await services.mail.folder(user, name)
    uidvalidity = number(request, "uidvalidity", UID_MAX, minimum=1)
    if uidvalidity is None:
        # Mail of this cluster may lie below imported mail, which the next sync must not take for expunged.
        await services.mail.note_unfinished_sync(folder, ANY_DOVECOT, 0)
    return json_response(document(await services.mail.keep_uidvalidity(folder, uidvalidity)))


_FOLDER = "/api/v1/users/{user}/folders/{name}"
NUMBER_ROUTES: tuple[Route[HttpServices], ...] = (
    Route(
        "PUT", f"{_FOLDER}/numbers", put_numbers, query=frozenset({"uidnext", "modseq"}),
        needed=frozenset({"uidnext"}), answer=NumbersDocument,
    ),
    Route(
        "PUT", f"{_FOLDER}/uidvalidity", put_uidvalidity, query=frozenset({"uidvalidity"}), answer=FolderDocument,
    ),
)  # fmt: skip
