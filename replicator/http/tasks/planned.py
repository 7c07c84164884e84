"""Mailboxes of a repair plan in the body of an apply: all are checked before any work begins.

The client checks them by the same rules before sending (`check_planned`), because one invalid mailbox causes the whole
request to be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from string import hexdigits

from protocol.values import UID_MAX, Dot, sid_of
from replicator.config.values import sid
from replicator.http.message import ProblemError
from replicator.mail.annotations import check_owner_name
from replicator.tasks import HEADS_MAX, PLANNED_MAX, PlannedMailbox
from resync.entry import ID_BYTES, tree_id

ORIGIN_CHARS_MAX = 100  # length of `SID.boot`
SEQ_MAX = (1 << 63) - 1
NODES_MIN = 2

_UIDVALIDITY = f"uidvalidity must be a number from 0 to {UID_MAX}"
_HEADS = "heads must be an object with two or more nodes"
_HEAD = "a head must be null or [origin, seq], the name of an entry, such as ['dc1.1a2b', 17]"
_FIELDS = {"user", "mailbox", "uidvalidity", "heads", "damaged"}


def planned_mailboxes(documents: list[object]) -> tuple[PlannedMailbox, ...]:
    """Convert JSON values. Raises ProblemError, which names the invalid one, counted from 0."""
    if len(documents) > PLANNED_MAX:
        raise _problem(f"{len(documents)} mailboxes are too many; send at most {PLANNED_MAX} in one request")
    found: list[PlannedMailbox] = []
    heads = 0
    for number, document in enumerate(documents):
        try:
            found.append(_planned(document))
        except ValueError as error:
            raise _problem(f"mailboxes[{number}]: {error}") from None
        heads += len(found[-1].heads)
        if heads > HEADS_MAX:
            raise _problem(f"the mailboxes have more than {HEADS_MAX} heads; send fewer in one request")
    return tuple(found)


def _problem(detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.BAD_REQUEST, detail)


def _planned(document: object) -> PlannedMailbox:
    """Convert one JSON value. Raises ValueError."""
    if not isinstance(document, dict):
        raise ValueError("a planned mailbox must be a JSON object")  # noqa: TRY004 - one error type for what is wrong
    if unknown := document.keys() - _FIELDS:
        raise ValueError(f"{min(unknown)!r} is not a member of a planned mailbox")
    user, mailbox, uidvalidity = (document.get(name) for name in ("user", "mailbox", "uidvalidity"))
    if not isinstance(user, str):
        raise ValueError("user must be a string")  # noqa: TRY004 - as above
    if not isinstance(mailbox, str) or len(mailbox) != 2 * ID_BYTES or not set(mailbox) <= set(hexdigits):
        raise ValueError(f"mailbox must be an id of {ID_BYTES} bytes in hexadecimal")
    if type(uidvalidity) is not int:
        raise ValueError(_UIDVALIDITY)
    damaged = document.get("damaged", False)
    if not isinstance(damaged, bool):
        raise ValueError("damaged must be true or false")  # noqa: TRY004 - as above
    planned = PlannedMailbox(user, mailbox.lower(), uidvalidity, _heads(document.get("heads")), damaged)
    check_planned(planned)
    return planned


def check_planned(planned: PlannedMailbox) -> None:
    """Raise ValueError for values that no mailbox, folder tree or node can have."""
    check_owner_name(planned.user)
    if not 0 <= planned.uidvalidity <= UID_MAX:
        raise ValueError(_UIDVALIDITY)
    if planned.uidvalidity == 0 and bytes.fromhex(planned.mailbox) != tree_id(planned.user):
        raise ValueError("uidvalidity is 0, but mailbox is not the id of that user's folder tree")
    if len(planned.heads) < NODES_MIN:
        raise ValueError(_HEADS)
    for node, head in planned.heads.items():
        sid(node)
        if head is not None:
            _check_head(head)


def _heads(document: object) -> Mapping[str, Dot | None]:
    """Convert the heads. Raises ValueError."""
    if not isinstance(document, dict):
        raise ValueError(_HEADS)  # noqa: TRY004 - as above
    return {node: None if head is None else _head(head) for node, head in document.items()}


def _head(document: object) -> Dot:
    """Convert one head. Raises ValueError."""
    match document:
        case [str(origin), int(seq)] if type(seq) is int:
            return Dot(origin, seq)
    raise ValueError(_HEAD)


def _check_head(head: Dot) -> None:
    """Check a head. Raises ValueError."""
    sid(sid_of(head.origin))
    if not 1 <= head.seq <= SEQ_MAX or len(head.origin) > ORIGIN_CHARS_MAX:
        raise ValueError(_HEAD)
