"""Names and numbers in a request's path and query: untrusted text, checked here."""

from __future__ import annotations

from http import HTTPStatus

from replicator.http.message import ProblemError, Request

TIME_MAX_MS = 2**48 - 1  # as many bits as a stamp has (design section 2)
MESSAGE_ID_CHARS_MAX = 1000
MODSEQ_MAX = 2**39  # that can be kept (design section 5)

PARAMETERS = {
    "address": "an IP address, or a network such as 10.1.0.0/16 (all)",
    "after": "a UID; only messages above it (0)",
    "before_ms": "only mail that was received before then (all)",
    "command": "names of commands and replies, separated by commas (all)",
    "flags": "flags and keywords, separated by spaces (none)",
    "guid": "the mail with this GUID, in hexadecimal",
    "id": "a session (all)",
    "last": "so many entries at most, up to 10,000 (50)",
    "mailbox": "the folder (INBOX; for a trace all)",
    "message_id": "mails with this Message-ID, without its angle brackets",
    "modseq": "the HIGHESTMODSEQ that it has elsewhere (0)",
    "name": "the folder, or of the page the file",
    "new": "`true`: the folder must not exist (false)",
    "node": "the new master (the node itself)",
    "use": "the special uses of the folder if it is created (RFC 6154), separated by spaces",
    "of": "a user or an address (all)",
    "peer": "the node at the other end of a link (all)",
    "received_ms": "the date of its receipt (now)",
    "since_ms": "only entries since then (all)",
    "to": "the new name",
    "uid": "the mail that has, or had, this UID; of new mail, the UID that it has elsewhere",
    "uidnext": "the UIDNEXT that it has elsewhere",
    "uids": "only mail with these UIDs: `7,30:39,100:*` (all)",
    "uidvalidity": "the UIDVALIDITY that it has elsewhere (its own)",
    "user": "the user's name",
    "wait": "`true`: answer when the task has ended, or after a second",
}
"""Parameters of path and query: the meaning and, in brackets, the default."""

NUMBERS = frozenset(
    {"after", "before_ms", "last", "modseq", "received_ms", "since_ms", "uid", "uidnext", "uidvalidity"}
)
"""Parameters that are whole numbers."""

FLAGS = frozenset({"new", "wait"})
"""Parameters that are true or false."""


def number(request: Request, name: str, maximum: int, minimum: int = 0) -> int | None:
    """Return a number of the query; None if it is not there. Raises ProblemError."""
    text = request.query.get(name)
    if text is None:
        return None
    # isdecimal alone accepts other scripts' digits, and int() takes time quadratic in the length
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(maximum))
    if not is_number or not minimum <= int(text) <= maximum:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: {name} must be a number from {minimum} to {maximum}")
    return int(text)


def message_id(request: Request) -> str | None:
    """Return the Message-ID of the query; None if it is not there. Raises ProblemError."""
    found = request.query.get("message_id")
    if found is not None and not 0 < len(found) <= MESSAGE_ID_CHARS_MAX:
        detail = f"query: message_id must have 1 to {MESSAGE_ID_CHARS_MAX} characters"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    return found


def flag(request: Request, name: str) -> bool:
    """Return whether a flag of the query is `true`; False if it is not there. Raises ProblemError."""
    given = request.query.get(name, "false")
    if given not in {"true", "false"}:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: {name} must be true or false")
    return given == "true"


def no_such_user(name: str) -> ProblemError:
    """Return the problem that nobody has this name."""
    return ProblemError(HTTPStatus.NOT_FOUND, f"there is no user {name!r}; `replicator user list` lists all users")
