"""The requests of a node's JSON API, as the command line makes them. Blocks; one connection, for one thread."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgpack

from protocol.values import UidSet
from replicator.cli.api.connection import (
    ANSWER_BYTES_MAX,
    NodeConnection,
    segment,
)
from replicator.cli.api.mail_stream import Mail, mails
from replicator.cli.api.trace_stream import trace_events
from replicator.mail.lookup import parse_uids
from replicator.runtime.drain import DrainStatus
from replicator.runtime.sessions import SessionStatus
from replicator.status import (
    CertificateStatus,
    CheckpointResult,
    ChosenMail,
    ExpungeResult,
    FolderList,
    MailboxStatus,
    NodeStatus,
    PurgeResult,
    QuotaStatus,
    SearchTextStatus,
)
from replicator.stories import AskedMail, LoggedHistory, MailboxStory, MailStory
from replicator.tasks import (
    ApplyStatus,
    CheckStatus,
    InventoryStatus,
    ResyncStatus,
    TaskName,
    TaskStatus,
    UndeleteStatus,
)
from replicator.tracing.traced import TraceEvent
from replicator.users import Account, MailNames, Penalty, Trial

JSON, MSGPACK = "application/json", "application/vnd.msgpack"
USERS_AT_ONCE = 200

_Object = dict[str, Any]  # parsed JSON, not yet converted

D = TypeVar("D")
S = TypeVar("S", bound=TaskStatus)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskKind(Generic[S]):
    """A task and the kind of its status."""

    name: TaskName
    status: type[S]


CHECK, SCRUB = TaskKind("check", CheckStatus), TaskKind("scrub", CheckStatus)
RESYNC = TaskKind("resync", ResyncStatus)
UNDELETE = TaskKind("undelete", UndeleteStatus)
INVENTORY = TaskKind("inventory", InventoryStatus)
APPLY = TaskKind("apply", ApplyStatus)


@dataclass(frozen=True, slots=True)
class FoundFolder:
    """A folder of a user at the node."""

    name: str
    mailbox_id: str
    uidvalidity: int
    uidnext: int = 1
    messages: int = 0


class SentMessage(NamedTuple):
    """A message to be stored. `uid`: its UID at another server, which it keeps unless UIDNEXT is above it.

    `guid`: the one that it is to have; only `save_all` gives it.
    """

    text: bytes
    flags: frozenset[str] = frozenset()
    received_ms: int | None = None
    uid: int | None = None
    guid: bytes | None = None


class HashedMail(NamedTuple):
    """A mail of a folder, by its UID, the SHA-256 of its text in hexadecimal, and its GUID."""

    uid: int
    sha256: str
    guid: bytes


@dataclass(frozen=True, slots=True)
class TakenChange:
    """New flags for messages that have the flags `was`; None: they are to be expunged."""

    uids: UidSet
    was: frozenset[str]
    flags: frozenset[str] | None


class NodeClient(NodeConnection):
    """The requests that one node takes. Every method raises UnreachableError and RefusedError."""

    def status(self) -> NodeStatus:
        """Return the status of the node and its links."""
        return self.read(NodeStatus, self.ask("GET", "/api/v1/status"))

    def metrics(self) -> str:
        """Return the node's metrics, in Prometheus's text format."""
        with self.answering():
            response = self.request("GET", "/metrics")
            text = response.read(ANSWER_BYTES_MAX)
        if response.status != HTTPStatus.OK:
            raise self.refusal(response, self.parsed_by(json.loads, text))
        return self.parsed_by(bytes.decode, text)

    def check_alive(self) -> None:
        """Return if the node's process answers."""
        self.ask("GET", "/livez")

    def reasons_of_ill_health(self) -> list[str]:
        """Return why clients should not be sent to the node; nothing if it is healthy."""
        return self.parsed_by(_reasons, self.ask("GET", "/healthz", accepted=(HTTPStatus.SERVICE_UNAVAILABLE,)))

    def mailboxes(self, user: str) -> list[MailboxStatus]:
        """Return the user's mailboxes."""
        return self.read(list[MailboxStatus], self.ask("GET", "/api/v1/mailboxes", {"user": user}))

    def users(self) -> list[str]:
        """Return the users' names."""
        return self.read(list[str], self.ask("GET", "/api/v1/users"))

    def add_users(self, lines: Sequence[str], *, replace: bool = False) -> None:
        """Add users to the cluster's table by their lines, `USERS_AT_ONCE` at most, all or none."""
        body = json.dumps({"lines": lines, "replace": replace}).encode()
        self.ask("POST", "/api/v1/users", body=body, content_type=JSON)

    def set_password(self, user: str, hashed: str) -> None:
        """Set the hash of a user's password in the cluster's table."""
        body = json.dumps({"hash": hashed}).encode()
        self.ask("PUT", f"/api/v1/users/{segment(user)}/password", body=body, content_type=JSON)

    def accounts(self) -> list[Account]:
        """Return the users, and what their lines say."""
        return self.read(list[Account], self.ask("GET", "/api/v1/accounts"))

    def account(self, name: str) -> Account:
        """Return a user by any name or address. Raises CommandError if there is none."""
        return self.read(Account, self.ask("GET", f"/api/v1/users/{segment(name)}"))

    def set_disabled(self, user: str, *, disabled: bool) -> MailNames:
        """Disable a user of the cluster's table, or let the user log in again; return who else opens the mail."""
        body = json.dumps({"disabled": disabled}).encode()
        document = self.ask("PUT", f"/api/v1/users/{segment(user)}/disabled", body=body, content_type=JSON)
        return self.parsed_by(_mail_names, document)

    def rename_user(self, user: str, name: str) -> str:
        """Give a user of the cluster's table another log-in name; return the user whose mail that opens."""
        document = self.ask("PUT", f"/api/v1/users/{segment(user)}/name", {"to": name})
        return self.parsed_by(_mail_user, document)

    def delete_user(self, user: str) -> MailNames:
        """Remove a user from the cluster's table; return whose mail that was, and who else opens it."""
        return self.parsed_by(_mail_names, self.ask("DELETE", f"/api/v1/users/{segment(user)}"))

    def try_login(self, name: str, password: str, address: str | None = None) -> Trial:
        """Return whether a client would get in with this name and password, from an IP address; None: from any."""
        body = json.dumps({"password": password} | ({} if address is None else {"address": address})).encode()
        document = self.ask("POST", f"/api/v1/users/{segment(name)}/try-login", body=body, content_type=JSON)
        return self.read(Trial, document)

    def penalties(self) -> list[Penalty]:
        """Return who is delayed after failed log-ins."""
        return self.read(list[Penalty], self.ask("GET", "/api/v1/penalties"))

    def forgive(self, of: str | None) -> int:
        """Forget the failed log-ins of a user or an address, or of everybody; return how many penalties end."""
        query = None if of is None else {"of": of}
        return self.parsed_by(_ended, self.ask("DELETE", "/api/v1/penalties", query))

    def purge(self, user: str) -> PurgeResult:
        """Remove some of a former user's mail; `more`: ask again."""
        return self.read(PurgeResult, self.ask("POST", f"/api/v1/users/{segment(user)}/purge"))

    def quota(self, user: str) -> QuotaStatus:
        """Return the usage and the limits of the user's mail."""
        return self.read(QuotaStatus, self.ask("GET", f"/api/v1/users/{segment(user)}/quota"))

    def make_folder(self, user: str, name: str, use: str | None = None) -> FoundFolder:
        """Create the folder, with these special uses, unless it exists; return it."""
        return self.read(FoundFolder, self.ask("PUT", _folder(user, name), _given(use=use)))

    def folders(self, user: str) -> FolderList:
        """Return the user's folders and subscriptions."""
        return self.read(FolderList, self.ask("GET", f"/api/v1/users/{segment(user)}/folders"))

    def create_folder(self, user: str, name: str) -> None:
        """Create a folder that does not exist."""
        self.ask("PUT", _folder(user, name), {"new": "true"})

    def rename_folder(self, user: str, old: str, new: str) -> None:
        """Rename a folder with all below it."""
        self.ask("PUT", f"{_folder(user, old)}/name", {"to": new})

    def delete_folder(self, user: str, name: str) -> None:
        """Delete a folder with its mail."""
        self.ask("DELETE", _folder(user, name))

    def subscribe(self, user: str, name: str, *, subscribed: bool) -> None:
        """Subscribe the user to a name, or end that."""
        method = "PUT" if subscribed else "DELETE"
        self.ask(method, f"/api/v1/users/{segment(user)}/subscriptions/{segment(name)}")

    def chosen(self, user: str, mailbox: str, choice: Mapping[str, str], after: int = 0) -> ChosenMail:
        """Return what mail of the folder is chosen, from `after` on as far as the node has looked."""
        query = {**choice, "after": str(after)}
        return self.read(ChosenMail, self.ask("GET", f"{_folder(user, mailbox)}/chosen", query))

    def expunge(self, seen: ChosenMail, uids: UidSet) -> ExpungeResult:
        """Expunge mail that the node has shown."""
        body = json.dumps({"node": seen.node, "uidvalidity": seen.uidvalidity, "uids": str(uids)}).encode()
        path = f"{_folder(seen.user, seen.mailbox)}/expunge"
        return self.read(ExpungeResult, self.ask("POST", path, body=body, content_type=JSON))

    def master(self, user: str, mailbox: str) -> str | None:
        """Return the folder's master, if the node knows it."""
        return self.parsed_by(_master, self.ask("GET", f"{_folder(user, mailbox)}/master"))

    def move_master(self, user: str, mailbox: str, node: str) -> None:
        """Make a node the folder's master."""
        self.ask("PUT", f"{_folder(user, mailbox)}/master", {"node": node})

    def mailbox(self, user: str, mailbox: str) -> MailboxStory:
        """Return what the node knows of a folder."""
        document = self.ask("GET", _folder(user, mailbox))
        return self.read(MailboxStory, document)

    def mail(self, user: str, mailbox: str, asked: AskedMail) -> MailStory:
        """Return what the node knows of a mail, and of others like it."""
        query = {"uid": asked.uid, "guid": asked.guid and asked.guid.hex(), "message_id": asked.message_id}
        path = f"{_folder(user, mailbox)}/story"
        given = {name: str(value) for name, value in query.items() if value is not None}
        return self.read(MailStory, self.ask("GET", path, given))

    def history(self, user: str, mailbox: str | None, last: int, since_ms: int) -> LoggedHistory:
        """Return the last entries of a folder, or with None of the user's folder tree."""
        folder = "" if mailbox is None else f"/folders/{segment(mailbox)}"
        query = {"last": str(last), "since_ms": str(since_ms)}
        document = self.ask("GET", f"/api/v1/users/{segment(user)}{folder}/log", query)
        return self.read(LoggedHistory, document)

    def sessions(self, user: str | None, address: str | None) -> list[SessionStatus]:
        """Return the node's sessions, or those of a user, or from an address or network."""
        return self.read(list[SessionStatus], self.ask("GET", "/api/v1/sessions", _given(user=user, address=address)))

    def end_sessions(self, user: str | None, address: str | None, named: str | None) -> list[SessionStatus]:
        """End the sessions that have all of what is given, of a user, an address or network, and an id; return them."""
        query = _given(user=user, address=address, id=named)
        return self.read(list[SessionStatus], self.ask("DELETE", "/api/v1/sessions", query))

    def drain(self) -> DrainStatus:
        """Make the node call itself unhealthy, so that balancers send new clients elsewhere."""
        return self.read(DrainStatus, self.ask("POST", "/api/v1/drain"))

    def undo_drain(self) -> DrainStatus:
        """End the node's drain."""
        return self.read(DrainStatus, self.ask("DELETE", "/api/v1/drain"))

    def stop(self) -> bool:
        """Make the node end; return True if a service manager has started it."""
        return self.parsed_by(_managed, self.ask("POST", "/api/v1/stop"))

    def checkpoint(self) -> CheckpointResult:
        """Write checkpoints of all changes. Return the state afterwards or, if it takes long, so far."""
        return self.read(CheckpointResult, self.ask("POST", "/api/v1/checkpoint"))

    def reload(self) -> list[CertificateStatus]:
        """Make the node read its certificates again; return them."""
        return self.read(list[CertificateStatus], self.ask("POST", "/api/v1/reload"))

    def rebuild_search_texts(self) -> SearchTextStatus:
        """Make the node make its search texts anew; return what there was before."""
        return self.read(SearchTextStatus, self.ask("POST", "/api/v1/search/rebuild"))

    def contents(self, user: str, mailbox: str) -> list[HashedMail]:
        """Return the folder's messages, by UID."""
        found = list[HashedMail]()
        after: int | None = 0
        while after is not None:
            query = {"mailbox": mailbox, "after": str(after)}
            document = self.ask("GET", f"/api/v1/users/{segment(user)}/messages", query)
            page, after = self.parsed_by(_contents_page, document)
            found += page
        return found

    def save(self, user: str, mailbox: str, message: SentMessage) -> int | None:
        """Store a message. Return its UID; None: the node does not show it yet."""
        query = {"mailbox": mailbox, "flags": " ".join(sorted(message.flags))}
        query |= {
            name: str(value)
            for name, value in (("received_ms", message.received_ms), ("uid", message.uid))
            if value is not None
        }
        answer = self.ask("POST", f"/api/v1/users/{segment(user)}/messages", query, message.text)
        return self.parsed_by(_saved_uid, answer)

    def save_all(self, user: str, mailbox: str, messages: Sequence[SentMessage]) -> list[int | None]:
        """Store messages in this order, all or none. Return their UIDs, as `save` does."""
        batch = [(one.received_ms, sorted(one.flags), one.text, one.uid, one.guid) for one in messages]
        path = f"/api/v1/users/{segment(user)}/messages/batch"
        return self.parsed_by(_saved_uids, self.ask("POST", path, {"mailbox": mailbox}, msgpack.packb(batch), MSGPACK))

    def raise_numbers(self, user: str, mailbox: str, uidnext: int, modseq: int) -> None:
        """Raise a folder's UIDNEXT and HIGHESTMODSEQ to at least these."""
        self.ask("PUT", f"{_folder(user, mailbox)}/numbers", {"uidnext": str(uidnext), "modseq": str(modseq)})

    def keep_uidvalidity(self, user: str, mailbox: str, uidvalidity: int | None) -> int:
        """Give a folder that never had mail this UIDVALIDITY, with None its own again; return the one that it has."""
        query = {} if uidvalidity is None else {"uidvalidity": str(uidvalidity)}
        return self.parsed_by(_uidvalidity, self.ask("PUT", f"{_folder(user, mailbox)}/uidvalidity", query))

    def take_over(self, user: str, mailbox: str, uidvalidity: int, change: TakenChange) -> UidSet:
        """Change messages as another server has it; return which were changed: those that nobody has changed here."""
        document = {
            "uidvalidity": uidvalidity,
            "uids": str(change.uids),
            "was": sorted(change.was),
            "flags": None if change.flags is None else sorted(change.flags),
        }
        path = f"{_folder(user, mailbox)}/changes"
        return self.parsed_by(_changed, self.ask("POST", path, body=json.dumps(document).encode(), content_type=JSON))

    def mails(self, user: str, mailbox: str, uid: int | None = None) -> Generator[Mail, None, None]:
        """Yield the mail of a folder, or the one with this UID. Take the pieces of each before the next one.

        The generator is to be closed before the client is used again. Taking pieces raises the same errors.
        """
        with self.streamed(f"{_folder(user, mailbox)}/mail", _given(uid=None if uid is None else str(uid))) as chunks:
            yield from mails(chunks, self.senseless)

    def trace(
        self, peer: str | None, commands: str | None, user: str | None, mailbox: str | None
    ) -> Generator[TraceEvent | None, None, None]:
        """Yield what goes over the node's links from now on, and None when nothing does.

        It ends with TraceEnded. The generator is to be closed before the client is used again.
        """
        query = _given(peer=peer, command=commands, user=user, mailbox=mailbox)
        with self.streamed("/api/v1/trace", query) as chunks:
            yield from trace_events(chunks, self.senseless)

    def start(self, task: TaskKind[S], options: Mapping[str, object]) -> S:
        """Start a task."""
        body = json.dumps(options).encode()
        return self.read(task.status, self.ask("POST", f"/api/v1/{task.name}", body=body, content_type=JSON))

    def follow(self, task: TaskKind[S]) -> S:
        """Return a task's status, once it has ended or made some progress."""
        return self.read(task.status, self.ask("GET", f"/api/v1/{task.name}", {"wait": "true"}))

    def cancel(self, task: TaskKind[S]) -> S:
        """Cancel a task and return its result."""
        return self.read(task.status, self.ask("DELETE", f"/api/v1/{task.name}"))


def _folder(user: str, name: str) -> str:
    return f"/api/v1/users/{segment(user)}/folders/{segment(name)}"


def _given(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _reasons(document: object) -> list[str]:
    fields = cast("_Object", document)
    if fields["healthy"]:
        return []
    return [str(reason) for reason in fields.get("reasons", ["not healthy; it tells why to those who have a token"])]


def _master(document: object) -> str | None:
    master = cast("_Object", document)["master"]
    return None if master is None else str(master)


def _saved_uid(document: object) -> int | None:
    uid = cast("_Object", document)["uid"]
    return None if uid is None else int(uid)


def _saved_uids(document: object) -> list[int | None]:
    return [None if uid is None else int(uid) for uid in cast("_Object", document)["uids"]]


def _uidvalidity(document: object) -> int:
    return int(cast("_Object", document)["uidvalidity"])


def _managed(document: object) -> bool:
    return bool(cast("_Object", document)["managed"])


def _ended(document: object) -> int:
    return int(cast("_Object", document)["ended"])


def _mail_user(document: object) -> str:
    return str(cast("_Object", document)["mail_user"])


def _contents_page(document: object) -> tuple[list[HashedMail], int | None]:
    """Return the page's messages, and the UID from which to continue, or None at the end."""
    page = cast("_Object", document)
    mails = [HashedMail(int(row["uid"]), str(row["sha256"]), bytes.fromhex(row["guid"])) for row in page["messages"]]
    return mails, mails[-1].uid if page["more"] else None


def _changed(document: object) -> UidSet:
    text = str(cast("_Object", document)["changed"])
    return parse_uids(text) if text else UidSet()


def _mail_names(document: object) -> MailNames:
    names = cast("list[str]", cast("_Object", document)["other_names"])
    return MailNames(_mail_user(document), tuple(map(str, names)))
