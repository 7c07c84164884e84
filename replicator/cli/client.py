"""Client of a node's JSON API. Blocks; one connection, for one thread.

Responses are validated when they are parsed, so that a node of another version is recognised.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast
from urllib.parse import quote

import msgpack

from protocol.units import KIB, MIB
from replicator.cli.documents import parsed
from replicator.cli.mail_stream import Mail, mails
from replicator.cli.target import AUTHORITIES_VARIABLE, TOKEN_VARIABLE, CommandError, NodeUrl
from replicator.runtime.files.disk_room import DiskRoom
from replicator.runtime.sessions import SessionStatus
from replicator.status import (
    CertificateStatus,
    CheckpointResult,
    CheckpointStatus,
    FolderList,
    LinkStatus,
    MailboxStatus,
    NodeStatus,
    NoRoom,
    PurgeResult,
    QuotaStatus,
    SearchTextStatus,
)
from replicator.stories import AskedMail, LoggedHistory, MailboxStory, MailStory
from replicator.tasks import (
    ApplyStatus,
    CheckStatus,
    Difference,
    Finding,
    InventoryStatus,
    ResyncStatus,
    ShownAt,
    TaskName,
    TaskStatus,
    Undeleted,
    UndeleteStatus,
    Undone,
    UnreadableRow,
)
from replicator.users import Account, Penalty, Trial

TIMEOUT_S = 90.0  # longer than any wait of the node itself
JSON, MSGPACK = "application/json", "application/vnd.msgpack"
RECEIVE_BYTES = 64 * KIB
ANSWER_BYTES_MAX = 256 * MIB  # the list of a million mailboxes
USERS_AT_ONCE = 200
SHOWN_MAX = 200  # characters of an answer that makes no sense
TOKEN_NEEDED = (
    f"this needs a token: name a file with one by --token-file, or put it into the variable {TOKEN_VARIABLE};"
    " `replicator token add` makes one"
)
OTHER_NAME = {62, 64}  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"}

_Object = dict[str, Any]  # parsed JSON, not yet converted

D = TypeVar("D")
S = TypeVar("S", bound=TaskStatus)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskKind(Generic[S]):
    """A task and the parser of its status."""

    name: TaskName
    parse: Callable[[object], S]


class NodeError(CommandError):
    """A node's failure to do what was asked. `detail` is the message without the node's name."""

    def __init__(self, url: NodeUrl, detail: str) -> None:
        super().__init__(f"{url.name}: {detail}")
        self.detail = detail


class UnreachableError(NodeError):
    """The node does not answer."""


class RefusedError(NodeError):
    """The node answered with a refusal or an error."""

    def __init__(self, url: NodeUrl, detail: str, status: int) -> None:
        super().__init__(url, detail)
        self.status = status


class NodeClient:
    """A connection to one node. Every method raises UnreachableError and RefusedError."""

    def __init__(self, url: NodeUrl, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._connection = _connection(url, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def status(self) -> NodeStatus:
        """Return the status of the node and its links."""
        return self._parsed(_node_status, self._ask("GET", "/api/v1/status"))

    def check_alive(self) -> None:
        """Return if the node's process answers."""
        self._ask("GET", "/livez")

    def reasons_of_ill_health(self) -> list[str]:
        """Return why clients should not be sent to the node; nothing if it is healthy."""
        return self._parsed(_reasons, self._ask("GET", "/healthz", accepted=(HTTPStatus.SERVICE_UNAVAILABLE,)))

    def mailboxes(self, user: str) -> list[MailboxStatus]:
        """Return the user's mailboxes."""
        return self._parsed(_mailboxes, self._ask("GET", "/api/v1/mailboxes", {"user": user}))

    def users(self) -> list[str]:
        """Return the users' names."""
        return self._parsed(_names, self._ask("GET", "/api/v1/users"))

    def add_users(self, lines: Sequence[str], *, replace: bool = False) -> None:
        """Add users to the cluster's table by their lines, `USERS_AT_ONCE` at most, all or none."""
        body = json.dumps({"lines": lines, "replace": replace}).encode()
        self._ask("POST", "/api/v1/users", body=body, content_type=JSON)

    def set_password(self, user: str, hashed: str) -> None:
        """Set the hash of a user's password in the cluster's table."""
        body = json.dumps({"hash": hashed}).encode()
        self._ask("PUT", f"/api/v1/users/{_segment(user)}/password", body=body, content_type=JSON)

    def accounts(self) -> list[Account]:
        """Return the users, and what their lines say."""
        return self._parsed(_accounts, self._ask("GET", "/api/v1/accounts"))

    def set_disabled(self, user: str, *, disabled: bool) -> None:
        """Disable a user of the cluster's table, or let the user log in again."""
        body = json.dumps({"disabled": disabled}).encode()
        self._ask("PUT", f"/api/v1/users/{_segment(user)}/disabled", body=body, content_type=JSON)

    def delete_user(self, user: str) -> None:
        """Remove a user from the cluster's table."""
        self._ask("DELETE", f"/api/v1/users/{_segment(user)}")

    def try_login(self, name: str, password: str) -> Trial:
        """Return whether a client would get in with this name and password."""
        body = json.dumps({"password": password}).encode()
        document = self._ask("POST", f"/api/v1/users/{_segment(name)}/try-login", body=body, content_type=JSON)
        return self._parsed(partial(parsed, Trial), document)

    def penalties(self) -> list[Penalty]:
        """Return who is delayed after failed log-ins."""
        return self._parsed(_penalties, self._ask("GET", "/api/v1/penalties"))

    def forgive(self, of: str | None) -> int:
        """Forget the failed log-ins of a user or an address, or of everybody; return how many penalties end."""
        query = None if of is None else {"of": of}
        return self._parsed(_ended, self._ask("DELETE", "/api/v1/penalties", query))

    def purge(self, user: str) -> PurgeResult:
        """Remove some of a former user's mail; `more`: ask again."""
        return self._parsed(_purge_result, self._ask("POST", f"/api/v1/users/{_segment(user)}/purge"))

    def quota(self, user: str) -> QuotaStatus:
        """Return the usage and the limits of the user's mail."""
        return self._parsed(_quota_status, self._ask("GET", f"/api/v1/users/{_segment(user)}/quota"))

    def make_folder(self, user: str, name: str) -> None:
        """Create the folder unless it exists."""
        self._ask("PUT", _folder(user, name))

    def folders(self, user: str) -> FolderList:
        """Return the user's folders and subscriptions."""
        return self._parsed(partial(parsed, FolderList), self._ask("GET", f"/api/v1/users/{_segment(user)}/folders"))

    def create_folder(self, user: str, name: str) -> None:
        """Create a folder that does not exist."""
        self._ask("PUT", _folder(user, name), {"new": "true"})

    def rename_folder(self, user: str, old: str, new: str) -> None:
        """Rename a folder with all below it."""
        self._ask("PUT", f"{_folder(user, old)}/name", {"to": new})

    def delete_folder(self, user: str, name: str) -> None:
        """Delete a folder with its mail."""
        self._ask("DELETE", _folder(user, name))

    def subscribe(self, user: str, name: str, *, subscribed: bool) -> None:
        """Subscribe the user to a name, or end that."""
        method = "PUT" if subscribed else "DELETE"
        self._ask(method, f"/api/v1/users/{_segment(user)}/subscriptions/{_segment(name)}")

    def master(self, user: str, mailbox: str) -> str | None:
        """Return the folder's master, if the node knows it."""
        return self._parsed(_master, self._ask("GET", f"{_folder(user, mailbox)}/master"))

    def move_master(self, user: str, mailbox: str, node: str) -> None:
        """Make a node the folder's master."""
        self._ask("PUT", f"{_folder(user, mailbox)}/master", {"node": node})

    def mailbox(self, user: str, mailbox: str) -> MailboxStory:
        """Return what the node knows of a folder."""
        document = self._ask("GET", _folder(user, mailbox))
        return self._parsed(partial(parsed, MailboxStory), document)

    def mail(self, user: str, mailbox: str, asked: AskedMail) -> MailStory:
        """Return what the node knows of a mail, and of others like it."""
        query = {"uid": asked.uid, "guid": asked.guid and asked.guid.hex(), "message_id": asked.message_id}
        path = f"{_folder(user, mailbox)}/story"
        given = {name: str(value) for name, value in query.items() if value is not None}
        return self._parsed(partial(parsed, MailStory), self._ask("GET", path, given))

    def history(self, user: str, mailbox: str | None, last: int, since_ms: int) -> LoggedHistory:
        """Return the last entries of a folder, or with None of the user's folder tree."""
        folder = "" if mailbox is None else f"/folders/{_segment(mailbox)}"
        query = {"last": str(last), "since_ms": str(since_ms)}
        document = self._ask("GET", f"/api/v1/users/{_segment(user)}{folder}/log", query)
        return self._parsed(partial(parsed, LoggedHistory), document)

    def sessions(self, user: str | None, address: str | None) -> list[SessionStatus]:
        """Return the node's sessions, or those of a user, or from an address or network."""
        return self._parsed(_sessions, self._ask("GET", "/api/v1/sessions", _given(user=user, address=address)))

    def end_sessions(self, user: str | None, address: str | None, named: str | None) -> list[SessionStatus]:
        """End the sessions that have all of what is given, of a user, an address or network, and an id; return them."""
        query = _given(user=user, address=address, id=named)
        return self._parsed(_sessions, self._ask("DELETE", "/api/v1/sessions", query))

    def checkpoint(self) -> CheckpointResult:
        """Write checkpoints of all changes. Return the state afterwards or, if it takes long, so far."""
        return self._parsed(_checkpoint_result, self._ask("POST", "/api/v1/checkpoint"))

    def reload(self) -> list[CertificateStatus]:
        """Make the node read its certificates again; return them."""
        return self._parsed(_certificates, self._ask("POST", "/api/v1/reload"))

    def rebuild_search_texts(self) -> SearchTextStatus:
        """Make the node make its search texts anew; return what there was before."""
        return self._parsed(_search_text_status, self._ask("POST", "/api/v1/search/rebuild"))

    def contents(self, user: str, mailbox: str) -> Counter[str]:
        """Return the folder's number of messages for each content, by SHA-256 in hexadecimal."""
        found: Counter[str] = Counter()
        after: int | None = 0
        while after is not None:
            query = {"mailbox": mailbox, "after": str(after)}
            document = self._ask("GET", f"/api/v1/users/{_segment(user)}/messages", query)
            hashes, after = self._parsed(_contents_page, document)
            found.update(hashes)
        return found

    def save(self, user: str, mailbox: str, text: bytes, flags: frozenset[str], received_ms: int | None) -> None:
        """Store a message."""
        query = {"mailbox": mailbox, "flags": " ".join(sorted(flags))}
        if received_ms is not None:
            query["received_ms"] = str(received_ms)
        self._ask("POST", f"/api/v1/users/{_segment(user)}/messages", query, text)

    def save_all(self, user: str, mailbox: str, messages: Sequence[tuple[bytes, frozenset[str], int | None]]) -> None:
        """Store messages, each with its flags and the time of its receipt, in this order: all or none."""
        batch = [(received_ms, sorted(flags), text) for text, flags, received_ms in messages]
        path = f"/api/v1/users/{_segment(user)}/messages/batch"
        self._ask("POST", path, {"mailbox": mailbox}, msgpack.packb(batch), MSGPACK)

    def mails(self, user: str, mailbox: str, uid: int | None = None) -> Generator[Mail, None, None]:
        """Yield the mail of a folder, or the one with this UID. Take the pieces of each before the next one.

        The generator is to be closed before the client is used again. Taking pieces raises the same errors.
        """
        target = f"{_folder(user, mailbox)}/mail" + ("" if uid is None else f"?uid={uid}")
        with self._answering():
            response = self._request("GET", target)
            if response.status != HTTPStatus.OK:
                raise self._refusal(response, self._parsed(json.loads, response.read(ANSWER_BYTES_MAX)))
        try:
            yield from mails(self._chunks(response), self._senseless)
        finally:
            response.close()  # it may not have been read to its end
            self._connection.close()

    def start(self, task: TaskKind[S], options: Mapping[str, object]) -> S:
        """Start a task."""
        body = json.dumps(options).encode()
        return self._parsed(task.parse, self._ask("POST", f"/api/v1/{task.name}", body=body, content_type=JSON))

    def follow(self, task: TaskKind[S]) -> S:
        """Return a task's status, once it has ended or made some progress."""
        return self._parsed(task.parse, self._ask("GET", f"/api/v1/{task.name}", {"wait": "true"}))

    def cancel(self, task: TaskKind[S]) -> S:
        """Cancel a task and return its result."""
        return self._parsed(task.parse, self._ask("DELETE", f"/api/v1/{task.name}"))

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "message/rfc822",
        *,
        accepted: Collection[int] = (),
    ) -> object:
        target = f"{path}?{'&'.join(f'{name}={_segment(value)}' for name, value in query.items())}" if query else path
        headers = {} if body is None else {"Content-Type": content_type}
        with self._answering():
            response = self._request(method, target, body, headers)
            answer = response.read(ANSWER_BYTES_MAX)
        document = self._parsed(json.loads, answer)
        if response.status >= HTTPStatus.BAD_REQUEST and response.status not in accepted:
            raise self._refusal(response, document)
        return document

    @property
    def _shows_token(self) -> bool:
        return self._url.token is not None and self._url.socket is None

    def _request(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send a request and return the answer, of which the head has arrived. Raises as `_answering` expects."""
        shown = {"Authorization": f"Bearer {self._url.token}"} if self._shows_token else {}
        self._connection.request(method, target, body, {**(headers or {}), **shown})
        return self._connection.getresponse()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Raise UnreachableError if the connection fails in this block."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise UnreachableError(self._url, _why_unreachable(self._url, error)) from error

    def _refusal(self, response: http.client.HTTPResponse, document: object) -> RefusedError:
        detail = document.get("detail") if isinstance(document, dict) else None
        if response.status == HTTPStatus.UNAUTHORIZED and not self._shows_token:
            detail = TOKEN_NEEDED
        return RefusedError(self._url, str(detail or response.reason), response.status)

    def _parsed(self, parse: Callable[[D], T], document: D) -> T:
        try:
            return parse(document)
        except (KeyError, TypeError, ValueError) as error:
            raise self._senseless(repr(error)) from error

    def _senseless(self, why: str) -> UnreachableError:
        return UnreachableError(self._url, f"unexpected answer ({why}); is this a node, and of the same version?")

    def _chunks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """Yield an answer as it arrives."""
        while True:
            with self._answering():
                chunk = response.read1(RECEIVE_BYTES)
            if not chunk:
                return
            yield chunk


class _OwnSocketConnection(http.client.HTTPConnection):
    """HTTP at a socket in the file system."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path, self._timeout_s = path, timeout_s

    def connect(self) -> None:
        """Connect. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(str(self._path))


def _connection(url: NodeUrl, timeout_s: float) -> http.client.HTTPConnection:
    if url.socket is not None:
        return _OwnSocketConnection(url.socket, timeout_s)
    if url.tls:
        return http.client.HTTPSConnection(url.host, url.port, timeout=timeout_s, context=ssl.create_default_context())
    return http.client.HTTPConnection(url.host, url.port, timeout=timeout_s)


def _why_unreachable(url: NodeUrl, error: OSError | http.client.HTTPException) -> str:
    """Return why there is no answer, and what to do."""
    told = " ".join(str(error).split())[:SHOWN_MAX]  # it may be what another server has sent
    where = f" at {url}" if url.sid else ""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = f"if you trust its CA, name the file of that in {AUTHORITIES_VARIABLE}"
        if error.verify_code in OTHER_NAME:
            advice = "use a name that is in the certificate"
        return f"the certificate{where} is not trusted: {error.verify_message.rstrip('.')}; {advice}"
    if isinstance(error, ssl.SSLError) and error.reason in NO_TLS:
        return f"no TLS {where.strip() or 'here'}; if it is a node's `listen.http` on loopback, use http://"
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
        return f"no HTTP server{where}: it answers {told!r}; give the address of the node's `listen.http`"
    reason = (error.strerror if isinstance(error, OSError) else None) or told or type(error).__name__
    may_be_tls = isinstance(error, ConnectionResetError) and not url.tls and not url.socket
    advice = " If it takes HTTPS only, use https://" if may_be_tls else ""
    return f"no answer{where} ({reason}); is the node running?{advice}"


def _folder(user: str, name: str) -> str:
    return f"/api/v1/users/{_segment(user)}/folders/{_segment(name)}"


def _given(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _segment(text: str) -> str:
    """Return the text for one place in a URL. Raises CommandError."""
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:  # the shell has passed octets that are no text
        raise CommandError(f"{text!r} is not UTF-8, as names are") from error


def _reasons(document: object) -> list[str]:
    fields = cast("_Object", document)
    if fields["healthy"]:
        return []
    return [str(reason) for reason in fields.get("reasons", ["not healthy; it tells why to those who have a token"])]


def _node_status(document: object) -> NodeStatus:
    fields = cast("_Object", document)
    links = tuple(LinkStatus(**link) for link in fields["links"])
    checkpoint = _checkpoint_status(fields["checkpoint"])
    no_room = tuple(NoRoom(**entry) for entry in fields["no_room"])
    lists = {name: tuple(fields[name]) for name in ("component", "not_serving")}
    certificates = tuple(_certificates(fields.get("certificates", ())))
    records: _Object = {"no_room": no_room, "links": links, "checkpoint": checkpoint, "certificates": certificates}
    edges = cast("_Object", fields.get("edges", {}))  # an earlier version tells none
    records["edges"] = {sid: tuple(nears) for sid, nears in edges.items()}
    records["disks"] = tuple(DiskRoom(**room) for room in fields.get("disks", ()))
    if fields.get("search_texts") is not None:
        records["search_texts"] = _search_text_status(fields["search_texts"])
    return NodeStatus(**{**fields, **lists, **records})


def _search_text_status(document: object) -> SearchTextStatus:
    return SearchTextStatus(**cast("_Object", document))


def _certificates(document: object) -> list[CertificateStatus]:
    return [CertificateStatus(**row) for row in cast("Iterable[_Object]", document)]


def _checkpoint_status(document: object) -> CheckpointStatus:
    fields = cast("_Object", document)
    return CheckpointStatus(**{**fields, "waits_for": tuple(fields["waits_for"])})


def _checkpoint_result(document: object) -> CheckpointResult:
    fields = cast("_Object", document)
    return CheckpointResult(**{**fields, "waits_for": tuple(fields["waits_for"])})


def _mailboxes(document: object) -> list[MailboxStatus]:
    return [MailboxStatus(**row) for row in cast("list[_Object]", document)]


def _quota_status(document: object) -> QuotaStatus:
    return QuotaStatus(**cast("_Object", document))


def _check_status(document: object) -> CheckStatus:
    fields = cast("_Object", document)
    return CheckStatus(**{**fields, "findings": [_finding(finding) for finding in fields["findings"]]})


def _finding(document: _Object) -> Finding:
    return Finding(**{**document, "also": tuple(ShownAt(**one) for one in document["also"])})


def _resync_status(document: object) -> ResyncStatus:
    fields = cast("_Object", document)
    return ResyncStatus(**{**fields, "differences": [Difference(**one) for one in fields["differences"]]})


def _undelete_status(document: object) -> UndeleteStatus:
    fields = cast("_Object", document)
    return UndeleteStatus(**{**fields, "messages": [Undeleted(**one) for one in fields["messages"]]})


def _inventory_status(document: object) -> InventoryStatus:
    fields = cast("_Object", document)
    return InventoryStatus(**{**fields, "unreadable": [UnreadableRow(**one) for one in fields["unreadable"]]})


def _apply_status(document: object) -> ApplyStatus:
    fields = cast("_Object", document)
    return ApplyStatus(**{**fields, "undone": [Undone(**one) for one in fields["undone"]]})


CHECK, SCRUB = TaskKind("check", _check_status), TaskKind("scrub", _check_status)
RESYNC = TaskKind("resync", _resync_status)
UNDELETE = TaskKind("undelete", _undelete_status)
INVENTORY = TaskKind("inventory", _inventory_status)
APPLY = TaskKind("apply", _apply_status)


def _master(document: object) -> str | None:
    master = cast("_Object", document)["master"]
    return None if master is None else str(master)


def _purge_result(document: object) -> PurgeResult:
    return PurgeResult(**cast("_Object", document))


def _sessions(document: object) -> list[SessionStatus]:
    return [SessionStatus(**fields) for fields in cast("list[_Object]", document)]


def _names(document: object) -> list[str]:
    return [str(name) for name in cast("list[object]", document)]


def _accounts(document: object) -> list[Account]:
    return [Account(**row) for row in cast("list[_Object]", document)]


def _penalties(document: object) -> list[Penalty]:
    return [Penalty(**row) for row in cast("list[_Object]", document)]


def _ended(document: object) -> int:
    return int(cast("_Object", document)["ended"])


def _contents_page(document: object) -> tuple[list[str], int | None]:
    """Return the page's content hashes, and the UID from which to continue, or None at the end."""
    page = cast("_Object", document)
    rows = page["messages"]
    return [str(row["sha256"]) for row in rows], int(rows[-1]["uid"]) if page["more"] else None
