"""One client's session: login, selected mailbox and output. Commands act on it.

The session belongs to one task; commands run one after the other, in order of arrival.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from math import inf

import trio

from protocol.framing import Frame
from replicator.config import LimitsConfig
from replicator.errors import ContentUnavailableError, MailboxFullError
from replicator.imap.notifications import Notifications, Wishes
from replicator.imap.search_updates import SearchUpdates
from replicator.imap.selection import Aware, Selection
from replicator.imap.services import ImapServices
from replicator.imap.wire.commands.command_types import Tagged
from replicator.imap.wire.connection import Connection
from replicator.imap.wire.refusals import CommandFailedError, limit_named
from replicator.mail.mailstore import Folder, MailStore
from replicator.runtime.places import Place
from replicator.runtime.process.loop_watch import doing
from replicator.runtime.sessions import Facts
from replicator.users import Login

_ALWAYS = ("IMAP4rev1", "IMAP4rev2", "SASL-IR", "ID")
_STRANGER = ("LITERAL-",)
"""RFC 7888 section 5: a literal has 4096 octets at most before login. LITERAL+ may not be announced beside it."""

_LOGGED_IN = (
    "LITERAL+",
    "NAMESPACE",
    "ENABLE",
    "CONDSTORE",
    "QRESYNC",
    "CHILDREN",
    "LIST-EXTENDED",
    "LIST-STATUS",
    "SPECIAL-USE",
    "CREATE-SPECIAL-USE",
    "METADATA",
    "UIDPLUS",
    "UNSELECT",
    "IDLE",
    "MOVE",
    "MULTIAPPEND",
    "CATENATE",
    "UTF8=ACCEPT",
    "URL-PARTIAL",
    "BINARY",
    "OBJECTID",
    "PREVIEW",
    "SAVEDATE",
    "STATUS=SIZE",
    "QUOTA",
    "QUOTA=RES-STORAGE",
    "QUOTA=RES-MESSAGE",
    "ESEARCH",
    "SEARCHRES",
    "WITHIN",
    "SORT",
    "SORT=DISPLAY",
    "ESORT",
    "THREAD=ORDEREDSUBJECT",
    "THREAD=REFERENCES",
    "THREAD=REFS",
    "I18NLEVEL=1",
    "CONTEXT=SEARCH",
    "CONTEXT=SORT",
    "NOTIFY",
)


CHANNEL_BINDING = "tls-server-end-point"
"""The channel binding for SCRAM-SHA-256-PLUS (RFC 5929 section 4).

The better tls-exporter (RFC 9266) needs keying material of the connection, which Python's ssl does not give out; its
tls-unique is not defined for TLS 1.3.
"""


class LoginRevokedError(Exception):
    """The user no longer exists, or has another password now, or the identity that was shown has expired."""


class State(Enum):
    """Session states of RFC 3501 section 3."""

    NOT_AUTHENTICATED = "not authenticated"
    AUTHENTICATED = "authenticated"
    SELECTED = "selected"
    LOGOUT = "logout"


@dataclass(frozen=True, slots=True)
class Completion:
    """Successful end of a command: `tag OK [code] text`; `after` runs once that is sent."""

    text: str
    code: str | None = None
    after: Callable[[], Awaitable[None]] | None = None


class Session:
    """The state that commands read and change."""

    def __init__(self, services: ImapServices, connection: Connection, place: Place) -> None:
        self.services = services
        self.connection = connection
        self._place = place
        self.ended = False
        self.failed_logins = 0
        self.tag = ""
        """The tag of the command that runs."""
        self._login: Login | None = None
        self._selection: Selection | None = None
        self.updates: SearchUpdates | None = None
        """The searches of the selected mailbox that are kept up to date, if there are any."""
        self._aware = Aware()
        self._notifications: Notifications | None = None
        self._read_until = inf
        self._command: str | None = None
        self._command_since_ms = services.clock_ms()

    def does(self, command: str | None) -> None:
        """Note the command that the session runs from now on; None: it waits for the next one."""
        self._command, self._command_since_ms = command, self.services.clock_ms()
        if command is not None:
            doing("imap", self.user_or_none, command)

    def facts(self) -> Facts:
        """Return what operators are told of the session."""
        mailbox = self._selection.folder.name if self._selection is not None else None
        master = self._login.master if self._login is not None else None
        return Facts(self.user_or_none, self._command, self._command_since_ms, mailbox, self.connection.secure, master)

    @property
    def state(self) -> State:
        """The session's state as in RFC 3501 section 3."""
        if self.ended:
            return State.LOGOUT
        if self._login is None:
            return State.NOT_AUTHENTICATED
        return State.AUTHENTICATED if self._selection is None else State.SELECTED

    @property
    def mail(self) -> MailStore:
        """The node's mail."""
        return self.services.mail

    @property
    def user(self) -> str:
        """The user who is logged in; read only in states that have one."""
        assert self._login is not None
        return self._login.user

    @property
    def user_or_none(self) -> str | None:
        """The user who is logged in, if anybody is."""
        return self._login.user if self._login is not None else None

    @property
    def selection(self) -> Selection:
        """The selected mailbox; read only in the selected state."""
        assert self._selection is not None
        return self._selection

    @property
    def selection_or_none(self) -> Selection | None:
        """The selected mailbox, if there is one."""
        return self._selection

    def capabilities(self) -> str:
        """Return the capabilities that apply now (RFC 3501 section 6.1.1)."""
        if self._login is not None:
            compress = () if self.connection.compressed else ("COMPRESS=DEFLATE",)
            limit = f"APPENDLIMIT={self.services.max_message_bytes}"
            return " ".join((*_ALWAYS, *_LOGGED_IN, limit, *compress))
        starttls = ("STARTTLS",) if self.services.tls() is not None and not self.connection.secure else ()
        login = [f"AUTH={name}" for name in self.mechanisms()] or ["LOGINDISABLED"]
        return " ".join((*_ALWAYS, *_STRANGER, *starttls, *login))

    def mechanisms(self) -> tuple[str, ...]:
        """Return the SASL mechanisms that are announced on this connection, the best first.

        Those with a password are announced if every user can log in by them.
        """
        if not self.connection.private:
            return ()
        certified = ("EXTERNAL",) if self.connection.identity is not None else ()
        bearer = ("OAUTHBEARER", "XOAUTH2") if self.services.tokens is not None else ()
        scram: tuple[str, ...] = ()
        if self.services.users.has_scram(for_all=True):
            bound = ("SCRAM-SHA-256-PLUS",) if self.connection.end_point is not None else ()
            scram = (*bound, "SCRAM-SHA-256")
        return (*certified, *scram, *bearer, "PLAIN")

    def accepts(self, mechanism: str) -> bool:
        """Return True if some user can log in by this SASL mechanism."""
        if mechanism.startswith("SCRAM-") and self.services.users.has_scram():
            return mechanism == "SCRAM-SHA-256" or self.connection.end_point is not None
        return mechanism in self.mechanisms()

    async def log_in(self, login: Login) -> Completion:
        """Log the client in as this user. Raises CommandFailedError if the user has too many connections."""
        if not await self.services.places.log_in(self._place, login.user):
            limit = self.services.limits.imap_connections_per_user
            raise CommandFailedError(f"You have {limit} connections open, which is the limit", "LIMIT")
        self._login = login
        self.services.metrics.sessions.inc()
        self.connection.welcome(self.services.max_message_bytes)
        return Completion("Logged in", f"CAPABILITY {self.capabilities()}")

    def check_login(self) -> None:
        """Check that a logged-in user still may log in. Raises LoginRevokedError."""
        if self._login is not None and not self.services.users.holds(self._login):
            what = "password was changed" if self._login.until_ms is None else "token or certificate has expired"
            raise LoginRevokedError(f"Your {what}, or your account was disabled or removed; log in again")

    @property
    def aware(self) -> Aware:
        """Extensions that the client understands."""
        return self._aware

    def become_aware(self, *, qresync: bool = False) -> None:
        """Note that the client is aware of CONDSTORE (RFC 7162 section 3.1), and of QRESYNC (section 3.2.3)."""
        if self._selection is not None and not self._aware.condstore:
            self._selection.forget_modseq()
        self._aware.condstore = True
        self._aware.qresync = self._aware.qresync or qresync

    @property
    def notifications(self) -> Notifications | None:
        """Changes that the client wants to hear of unasked; None if it has never sent NOTIFY."""
        return self._notifications

    @property
    def wishes(self) -> Wishes:
        """Wishes of the client for the selected mailbox."""
        return self._notifications.wishes if self._notifications is not None else Wishes()

    def notify(self, notifications: Notifications | None) -> None:
        """Replace the notifications that the client has asked for; None: it has asked for none."""
        if self._notifications is not None:
            self._notifications.close()
        self._notifications = notifications

    def select(self, selection: Selection | None) -> None:
        """Close the selected mailbox and select this one, if any."""
        if self._selection is not None:
            self._selection.close()
        if self.updates is not None:
            self.updates.close()
        self.updates = None
        self._selection = selection

    def close(self) -> None:
        """End the session, whatever the reason."""
        self.select(None)
        self.notify(None)
        if self._login is not None:
            self.services.metrics.sessions.dec()
        self._login = None
        self.ended = True

    @property
    def limits(self) -> LimitsConfig:
        """The limits on what a client may ask for."""
        return self.services.limits

    def refusal(self, limit: str, text: str, code: str = "LIMIT") -> CommandFailedError:
        """Count a refusal by this limit, a key of `[limits]`, and return the error for the client (RFC 5530, LIMIT)."""
        self.services.refusals.refused("imap", limit)
        return CommandFailedError(text, code)

    def refusal_of(self, error: MailboxFullError, code: str = "LIMIT") -> CommandFailedError:
        """Count a refusal by the limit that the error names, if it names one, and return the error for the client."""
        limit = limit_named(error)
        return CommandFailedError(str(error), code) if limit is None else self.refusal(limit, str(error), code)

    async def parsed(self, frame: Frame) -> Tagged:
        """Return the command of a frame. Raises CommandSyntaxError."""
        return await self.services.parsed(frame, utf8=self._aware.utf8)

    async def folder(self, name: str) -> Folder:
        """Return the user's folder of this name. Raises FolderNotFoundError."""
        return await self.mail.folder(self.user, name)

    async def catch_up(self) -> None:
        """Wait for what the client may have changed in the selected mailbox at other nodes, if one is selected."""
        if self._selection is not None:
            await self.mail.catch_up(self.user, self._selection.folder.name)

    @contextmanager
    def reading_within(self, seconds: float) -> Iterator[None]:
        """Limit the time in which bodies are read in this block, in seconds from its start. Sending has no limit."""
        self._read_until = trio.current_time() + seconds
        try:
            yield
        finally:
            self._read_until = inf

    @property
    def reading_has_a_limit(self) -> bool:
        """True if bodies are to be read in so much time in all."""
        return self._read_until < inf

    @property
    def reading_is_over(self) -> bool:
        """True if the time for reading bodies has passed."""
        return trio.current_time() >= self._read_until

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read one message's body in this block. Raises ContentUnavailableError if the time for that is over."""
        with trio.move_on_at(self._read_until) as scope:
            yield
        if scope.cancelled_caught:
            raise ContentUnavailableError("the body of this message does not come in time; try later")

    async def write(self, chunks: Iterable[bytes]) -> None:
        """Write responses before the command's end."""
        await self.connection.write(chunks)
