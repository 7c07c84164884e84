r"""The route by which an import makes changes here that another server has seen: flags, and expunges.

| route | answers |
|---|---|
| `POST /api/v1/users/USER/folders/NAME/changes` | `ChangesDocument`, when that is durable |

It takes `{"uidvalidity": 5, "uids": "1:3,7", "was": ["\\Seen"], "flags": ["\\Flagged"]}`, `CHANGED_MAX` UIDs at most,
and changes those messages that have exactly the flags `was`: whoever has changed a message here has the last word.
`flags` of null expunges them, as a client would: all nodes keep the mail for `content.keep_expunged`.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from protocol.values import UidSet
from replicator.http.documents import ChangesDocument, TakenChangeDocument
from replicator.http.mail.expunge_routes import UIDVALIDITY_MAX
from replicator.http.message import JSON_TYPE, ProblemError, Request, Response, json_response
from replicator.http.routing import Route
from replicator.http.services import HttpServices, known_user
from replicator.http.tasks.options import Options
from replicator.mail.flags import keywords, removable_flags, settable_flags
from replicator.mail.lookup import parse_uids
from replicator.mail.mailstore import canonical_name
from replicator.mail.view import MailboxView
from replicator.runtime.logs.fields import LogFields

CHANGED_MAX = 1000
_NAMES_MAX = 200  # of flags: a mailbox has 100 keywords at most

log = logging.getLogger(__name__)


async def post_changes(services: HttpServices, request: Request) -> Response:
    """Change the flags of messages of a folder, or expunge them, unless they have other flags than was expected."""
    user, name = await known_user(services, request), canonical_name(request.path["name"])
    options = Options(request.body)
    options.allow("uidvalidity", "uids", "was", "flags")
    uidvalidity, uids = options.needed_number("uidvalidity", UIDVALIDITY_MAX), _uids(options.needed_text("uids"))
    was, flags = frozenset(_names(options, "was") or ()), _names(options, "flags")
    await services.mail.catch_up(user, name)
    view = await services.mail.open_mailbox(await services.mail.folder(user, name))
    if uidvalidity != view.uidvalidity or view.deleted:
        raise ProblemError(HTTPStatus.CONFLICT, "nothing is changed: another folder has got this name; look again")
    same = _with_flags(view, uids, was)
    changed = await (_expunge(services, view, same) if flags is None else _store(services, view, same, was, flags))
    fields = {"user": user, "mailbox": name, "messages": len(changed), "expunged": flags is None}
    log.info("an import has changed mail %s", LogFields(fields))
    return json_response({"changed": str(changed)})


async def _expunge(services: HttpServices, view: MailboxView, uids: UidSet) -> UidSet:
    """Expunge messages; return which are gone."""
    if uids:
        await services.mail.expunge(view, uids)
    return UidSet.of(uid for uid in uids if uid not in view.messages)


async def _store(
    services: HttpServices, view: MailboxView, uids: UidSet, was: frozenset[str], flags: tuple[str, ...]
) -> UidSet:
    """Set and clear flags of messages; return which have them."""
    wanted = settable_flags(flags, keywords(view.by_flag))
    lower = {flag.lower() for flag in wanted}
    removed = removable_flags((flag for flag in was if flag.lower() not in lower), view)
    if not uids:
        return uids
    result = await services.mail.store_flags(
        view, uids, added=wanted, removed=removed, unchanged_since=view.highestmodseq
    )
    return UidSet.of({*uids} - {*result.refused})


def _with_flags(view: MailboxView, uids: UidSet, flags: frozenset[str]) -> UidSet:
    """Return the UIDs of messages that have exactly these flags, in whatever spelling."""
    lower = {flag.lower() for flag in flags}
    found = (uid for low, high in uids.ranges for uid in view.messages.irange(low, high))
    return UidSet.of(uid for uid in found if {flag.lower() for flag in view.messages[uid].flags} == lower)


def _uids(text: str) -> UidSet:
    try:
        uids = parse_uids(text)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"uids: {error}") from None
    if len(uids) > CHANGED_MAX:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"uids must name {CHANGED_MAX} at most, not {len(uids)}")
    return uids


def _names(options: Options, name: str) -> tuple[str, ...] | None:
    """Return a list of flags; None if it is null or missing."""
    if not options.has(name):
        return None
    names = tuple(one for one in options.list(name) if isinstance(one, str))
    if len(names) != len(options.list(name)) or len(names) > _NAMES_MAX:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"{name} must be a list of {_NAMES_MAX} flags at most, or null")
    return names


CHANGE_ROUTES: tuple[Route[HttpServices], ...] = (
    Route(
        "POST",
        "/api/v1/users/{user}/folders/{name}/changes",
        post_changes,
        body_type=JSON_TYPE,
        answer=ChangesDocument,
        takes=TakenChangeDocument,
    ),
)
