"""Routes by which an operator expunges mail of a user's folder: a look at what it would be, and the deed.

| route | answers |
|---|---|
| `GET /api/v1/users/USER/folders/NAME/chosen?uids=&before_ms=&message_id=&after=` | `ChosenMail`, one page |
| `POST /api/v1/users/USER/folders/NAME/expunge` | `ExpungeResult`, when that is durable |

POST takes `{"node": "dc1", "uidvalidity": 5, "uids": "1:3,7"}` as the look told them, `EXPUNGED_MAX` UIDs at most. It
takes the road of a client's EXPUNGE: the folder's master numbers the change, and all nodes keep the mail for
`content.keep_expunged`.

The look shows placements, and the deed removes no others (design section 3, promise 4). At one node, and under one
UIDVALIDITY, a UID never names another message, and never gains a placement; so the deed names the node and the
UIDVALIDITY of the look, and is refused where these are others. A merge between the two gives messages new UIDs above
UIDNEXT: these are left, and counted as missing. For a merge during the deed, the mail store knows the placements.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from itertools import chain, islice

import trio

from protocol.units import MIB
from protocol.values import UID_MAX, UidSet
from replicator.errors import ContentUnavailableError
from replicator.http.documents import ExpungeDocument
from replicator.http.message import JSON_TYPE, ProblemError, Request, Response, json_response
from replicator.http.parameters import TIME_MAX_MS, message_id, number
from replicator.http.routing import Route
from replicator.http.services import HttpServices, known_user
from replicator.http.tasks.options import Options
from replicator.mail.lookup import parse_uids
from replicator.mail.mailstore import BodyReader, canonical_name
from replicator.mail.view import MailboxView, Message
from replicator.runtime.logs.fields import LogFields
from replicator.status import ChosenMail, ExpungeResult

LOOKED_AT = 2000  # messages of a page of the look: a few milliseconds of the event loop
HEADERS_AT_ONCE = 250
BODIES_BYTES = 2 * MIB  # of bodies without an outline, read together
READ_S = 20.0  # for reading such bodies, for one page: less than the time limit of a request
EXPUNGED_MAX = 1000
UIDVALIDITY_MAX = 2**32 - 1

log = logging.getLogger(__name__)


async def get_chosen(services: HttpServices, request: Request) -> Response:
    """Return the mail of a folder that has all that is named, one page. Removes nothing."""
    user, name = await known_user(services, request), canonical_name(request.path["name"])
    uids = _uids(request.query.get("uids", f"1:{UID_MAX}"))
    before_ms, wanted_id = number(request, "before_ms", TIME_MAX_MS), message_id(request)
    after = number(request, "after", UID_MAX) or 0
    if not after:
        await services.mail.catch_up(user, name)
    folder = await services.mail.folder(user, name)
    view = await services.mail.open_mailbox(folder)
    looked_at = _page(view, uids, after)
    chosen = [one for one in looked_at if before_ms is None or one.received_ms < before_ms]
    unchecked = 0
    if wanted_id is not None:
        finder = _Finder(services, wanted_id)
        chosen, unchecked = await finder.found(chosen), finder.unchecked
    received = [one.received_ms for one in chosen]
    found = ChosenMail(
        node=services.sid,
        user=folder.user,
        mailbox=folder.name,
        uidvalidity=view.uidvalidity,
        uids=str(UidSet.of(one.uid for one in chosen)),
        messages=len(chosen),
        size_bytes=sum(one.size_bytes for one in chosen),
        oldest_ms=min(received, default=None),
        newest_ms=max(received, default=None),
        unchecked=unchecked,
        after=looked_at[-1].uid if len(looked_at) == LOOKED_AT else None,
        keep_expunged_s=services.keep_expunged_s,
    )
    return json_response(asdict(found))


async def post_expunge(services: HttpServices, request: Request) -> Response:
    """Expunge mail of a folder that a look has shown, as a client of the user would."""
    user, name = await known_user(services, request), canonical_name(request.path["name"])
    options = Options(request.body)
    options.allow("node", "uidvalidity", "uids")
    node, uidvalidity = options.needed_text("node"), options.needed_number("uidvalidity", UIDVALIDITY_MAX)
    uids = _uids(options.needed_text("uids"))
    if len(uids) > EXPUNGED_MAX:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"uids must name {EXPUNGED_MAX} at most, not {len(uids)}")
    view = await services.mail.open_mailbox(await services.mail.folder(user, name))
    _check_looked_at(services.sid, node, view, uidvalidity)
    before = {uid: view.messages[uid] for uid in uids if uid in view.messages}
    uidnext = view.uidnext
    if before:
        await services.mail.expunge(view, UidSet.of(before))
    messages = len(before) - _left(view, before, uidnext)
    fields = {"user": user, "mailbox": name, "messages": messages}
    log.info("an operator has expunged mail %s", LogFields(fields))
    until_ms = services.clock_ms() + int(services.keep_expunged_s * 1000)
    return json_response(asdict(ExpungeResult(messages, len(uids) - messages, until_ms)))


def _uids(text: str) -> UidSet:
    try:
        return parse_uids(text)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"uids: {error}") from None


def _page(view: MailboxView, uids: UidSet, after: int) -> Sequence[Message]:
    """Return the next messages with these UIDs, in their order."""
    ranges = ((max(low, after + 1), high) for low, high in uids.ranges if high > after)
    found = chain.from_iterable(view.messages.irange(low, high) for low, high in ranges)
    return [view.messages[uid] for uid in islice(found, LOOKED_AT)]


def _check_looked_at(sid: str, node: str, view: MailboxView, uidvalidity: int) -> None:
    """Refuse UIDs of another node, or of another UIDVALIDITY: here, they may name other messages."""
    if node != sid:
        raise ProblemError(
            HTTPStatus.CONFLICT, f"nothing is removed: {node} has told these UIDs, and this is {sid}; ask {node}"
        )
    if uidvalidity != view.uidvalidity or view.deleted:
        raise ProblemError(
            HTTPStatus.CONFLICT,
            "nothing is removed: since the look, another folder has got this name, or a merge has given the mail new"
            " UIDs; look again",
        )


def _left(view: MailboxView, before: Mapping[int, Message], uidnext: int) -> int:
    """Return how many of the messages are still there: a merge may have joined them with others not looked at.

    Such a merge has given them UIDs from the former UIDNEXT on.
    """
    guids = {one.guid for one in before.values()}
    shown = chain((uid for uid in before if uid in view.messages), view.messages.irange(minimum=uidnext))
    return len({view.messages[uid].guid for uid in shown} & guids)


class _Finder:
    """Finds messages by a Message-ID, until `until`. `unchecked`: those of which no header could be read."""

    def __init__(self, services: HttpServices, wanted: str) -> None:
        self._mail = services.mail
        self._how = services.message_ids
        self._run_in_thread = services.run_in_thread
        self._wanted = wanted
        self._until = trio.current_time() + READ_S
        self.unchecked = 0

    async def found(self, messages: Sequence[Message]) -> list[Message]:
        """Return those of the messages that have it. Raises MailError."""
        found = list[Message]()
        for start in range(0, len(messages), HEADERS_AT_ONCE):
            some = messages[start : start + HEADERS_AT_ONCE]
            outlines = await self._mail.outlines(some, self._how.version)
            having = await self._run_in_thread(partial(self._having, outlines))
            found += [one for one in some if one.content_hash in having]
            found += await self._read([one for one in some if one.content_hash not in outlines])
        return found

    def _having(self, outlines: Mapping[bytes, bytes]) -> set[bytes]:
        return {one for one, outline in outlines.items() if self._how.of_outline(outline) == self._wanted}

    async def _read(self, messages: Sequence[Message]) -> list[Message]:
        """Return those of the messages that have it, by their bodies."""
        found, read = list[Message](), 0
        with trio.move_on_at(self._until):
            together = await self._mail.read_bodies(messages, BODIES_BYTES) if messages else {}
            names = await self._run_in_thread(partial(self._names, together)) if together else {}
            for message in messages:
                if message.content_hash not in names:
                    try:
                        body = await self._mail.read_body(message)
                    except ContentUnavailableError:
                        continue
                    names |= await self._run_in_thread(partial(self._names, {message.content_hash: body}))
                if names[message.content_hash] == self._wanted:
                    found.append(message)
                read += 1
        self.unchecked += len(messages) - read
        return found

    def _names(self, bodies: Mapping[bytes, BodyReader]) -> dict[bytes, str | None]:
        return {one: self._how.of_skeleton(body.skeleton) for one, body in bodies.items()}


_FOLDER = "/api/v1/users/{user}/folders/{name}"
EXPUNGE_ROUTES: tuple[Route[HttpServices], ...] = (
    Route(
        "GET",
        f"{_FOLDER}/chosen",
        get_chosen,
        query=frozenset({"uids", "before_ms", "message_id", "after"}),
        is_private=True,
        answer=ChosenMail,
    ),
    Route(
        "POST",
        f"{_FOLDER}/expunge",
        post_expunge,
        body_type=JSON_TYPE,
        answer=ExpungeResult,
        takes=ExpungeDocument,
    ),
)
