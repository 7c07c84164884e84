"""HTTP messages as plain values, and errors as problem documents (RFC 9457).

Every error that this door reports is a `ProblemError`, and `problem_of` is the one place where errors of the mail store
become one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from typing import TypeVar

from replicator.errors import (
    ContentUnavailableError,
    DatabaseFailedError,
    DiskFullError,
    DurabilityError,
    FlagLimitError,
    FolderExistsError,
    FolderNotFoundError,
    InvalidFlagError,
    InvalidNameError,
    MailboxFullError,
    MailError,
    MessageTooLargeError,
    NotReadyError,
    OtherClusterError,
    QuotaExceededError,
    UnavailableError,
    UsersUnavailableError,
)

JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
EVENTS_TYPE = "text/event-stream"
MSGPACK_TYPE = "application/vnd.msgpack"

T = TypeVar("T")

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body. Header names are in lower case; `target` is unchanged."""

    method: str
    target: str
    headers: Mapping[str, str]

    @property
    def has_body(self) -> bool:
        """True if a body follows (RFC 9112 section 6)."""
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"


class Caller(Enum):
    """The asker: one who may do everything here, the holder of a token, or anybody, where others need a token."""

    OPERATOR = auto()
    HOLDER = auto()
    STRANGER = auto()


@dataclass(frozen=True, slots=True)
class Request:
    """Input of a handler: decoded path segments by their name in the route, and the query, one value per name.

    Names in `headers` are in lower case.
    """

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    caller: Caller = Caller.OPERATOR


@dataclass(frozen=True, slots=True)
class Response:
    """Output of a handler; the server adds length, date and connection headers.

    `then`: what to do once the client has the answer, or cannot be given it.
    """

    status: int
    body: bytes = field(repr=False)
    content_type: str = JSON_TYPE
    headers: Headers = ()
    then: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class EventStream:
    """Output of a handler that goes on for `most_s` seconds: `next` returns what to send next, once there is something.

    The server ends the stream earlier if its client would no longer be allowed to ask for it.
    """

    next: Callable[[], Awaitable[bytes]]
    most_s: float


@dataclass(frozen=True, slots=True)
class PieceStream:
    """Output of a handler that is made while it is sent, of any size. `pieces` has an end, and raises nothing.

    The server breaks it off if its client would no longer be allowed to ask for it.
    """

    pieces: AsyncGenerator[bytes, None]
    content_type: str


class ProblemError(Exception):
    """A refused request: `status` is the HTTP status, the text says what is wrong and what to do."""

    def __init__(self, status: HTTPStatus, detail: str, headers: Headers = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers

    def response(self) -> Response:
        """Return the problem document of type `about:blank`: the status tells the kind (RFC 9457 section 4.2.1)."""
        document = {"title": self.status.phrase, "status": self.status.value, "detail": str(self)}
        return Response(self.status.value, encode_json(document), PROBLEM_TYPE, self.headers)


MAIL_ERROR_STATUS: Mapping[type[MailError], HTTPStatus] = {
    FolderNotFoundError: HTTPStatus.NOT_FOUND,
    FolderExistsError: HTTPStatus.CONFLICT,
    InvalidNameError: HTTPStatus.BAD_REQUEST,
    InvalidFlagError: HTTPStatus.BAD_REQUEST,
    FlagLimitError: HTTPStatus.CONFLICT,
    MailboxFullError: HTTPStatus.CONFLICT,
    MessageTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ContentUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    DurabilityError: HTTPStatus.SERVICE_UNAVAILABLE,
    UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    DatabaseFailedError: HTTPStatus.SERVICE_UNAVAILABLE,
    NotReadyError: HTTPStatus.SERVICE_UNAVAILABLE,
    UsersUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    OtherClusterError: HTTPStatus.MISDIRECTED_REQUEST,
    DiskFullError: HTTPStatus.INSUFFICIENT_STORAGE,
    QuotaExceededError: HTTPStatus.INSUFFICIENT_STORAGE,
}


def problem_of(error: MailError) -> ProblemError:
    """Return the problem that reports an error of the mail store."""
    return ProblemError(MAIL_ERROR_STATUS.get(type(error), HTTPStatus.SERVICE_UNAVAILABLE), str(error))


def encode_json(document: object) -> bytes:
    """Return compact JSON in UTF-8, with a line feed at the end so that it reads well in a terminal.

    Surrogates, which UTF-8 cannot encode, are escaped; Python's escapes for them are valid JSON.
    """
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"


def encode_list(items: Iterable[T], document_of: Callable[[T], object]) -> bytes:
    """Return a JSON array like `encode_json`, encoded one by one: in a thread, others can go on between two items."""
    return b"[" + b",".join([encode_json(document_of(item))[:-1] for item in items]) + b"]\n"


def json_response(document: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a response with a JSON document."""
    return Response(status.value, encode_json(document))
