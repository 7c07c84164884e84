"""An LDAP server (RFC 4511): users are found by a search, and a password is right if their entry can bind with it.

The library `ldap3` speaks the protocol. It blocks, so each request runs in a thread. One that nobody waits for any more
has its socket shut, and so its thread ends. Searches keep their connections; a password is checked on a
connection of its own, so that no connection ever has the rights of another user.
"""

from __future__ import annotations

import re
import secrets
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import NamedTuple, TypeVar

import trio
from ldap3 import NONE, SIMPLE, SUBTREE, SYNC, Connection, Server, Tls
from ldap3.core.exceptions import LDAPException
from pyasn1.error import PyAsn1Error

from replicator.config import LdapConfig
from replicator.runtime.environment import ThreadRunner
from replicator.runtime.files.first_line import first_line
from replicator.user_sources.bounded_socket import BoundedSocket
from replicator.user_sources.certificates import TlsContext, key_of_refusal
from replicator.user_sources.ldap_filter import filter_for
from replicator.user_sources.limits import quota_of_all
from replicator.users import EntryError, Found, SourceError, Verdict

T = TypeVar("T")

IDLE_MAX = 4
"""Connections for searches that are kept while they have nothing to do."""

IDLE_S = 60.0
"""Seconds for which they are kept: routers forget connections after some minutes, and then requests hang."""

AGE_MAX_S = 600.0
"""Seconds for which a connection is used: behind one name there may be another server by then, or another password."""

ENTRIES_MAX = 2
"""Entries that a search may return: two are one too many."""

GRACE_S = 1.0
"""Seconds that a thread has beyond the timeout: the event loop gives up first, and says so."""


LIBRARY_ERRORS = (
    LDAPException, PyAsn1Error, OSError, LookupError, TypeError, ValueError, AttributeError, struct.error,
)  # fmt: skip
"""Errors that the library raises, those for answers that are no LDAP among them: it takes octets as they come."""

SUCCESS = 0
SIZE_LIMIT_EXCEEDED = 4
REFUSED = frozenset({19, 32, 48, 49, 50, 53})
"""Result codes of a bind that speak about the user: constraintViolation and unwillingToPerform of locked accounts,
noSuchObject, inappropriateAuthentication of entries without a password, invalidCredentials, insufficientAccessRights
(RFC 4511 appendix A)."""

UNAVAILABLE = frozenset({51, 52})
"""Result codes of a bind that speak about the server: busy, unavailable. With any other that is no success, the server
still answers about others: one client's log-in must not make the node unhealthy."""

KEYS_BY_RESULT = {
    "noSuchObject": "base",
    "invalidDNSyntax": "base",
    "referral": "base",
    "insufficientAccessRights": "bind_dn",
    "strongerAuthRequired": "bind_dn",
    "operationsError": "bind_dn",
}
"""The keys of [ldap] that a search's failure speaks about; else it is `filter`."""

UNVERIFIED = re.compile(r"certificate verify failed: (.*?)\.? \(_ssl")
"""OpenSSL's reason in the text of an error."""

NOT_DISABLED = frozenset({"", "0", "false", "no", "none"})
"""Values of the attribute for disabled users, in lower case, that do not disable."""


class _Line(NamedTuple):
    """A connection for searches, and until when it may be used."""

    connection: Connection
    old_at_s: float


class _Request:
    """A request in a thread of its own: until when it may take, and the socket that it uses."""

    def __init__(self, timeout_s: float) -> None:
        self._until_s = time.monotonic() + timeout_s
        self._socket: BoundedSocket | None = None
        self._is_over = False

    def use(self, connection: Connection) -> None:
        """Bound the answers on a connection from here on. For the thread of the request. Raises TimeoutError."""
        opened = connection.socket
        self._socket = opened if isinstance(opened, BoundedSocket) else BoundedSocket(opened)
        self._socket.allow(self._until_s)
        connection.socket = self._socket
        if self._is_over:
            raise TimeoutError("nobody waits for an answer any more")

    def let_go(self) -> None:
        """Leave the socket to other requests."""
        self._socket = None

    def give_up(self) -> None:
        """End what the thread waits for, if it still waits. For the event loop."""
        self._is_over = True
        waited_for = self._socket
        if waited_for is not None:
            waited_for.shut()


class _Idle(NamedTuple):
    """A connection for searches that has nothing to do."""

    line: _Line
    until_s: float


class LdapSource:
    """The configured server. Belongs to the event loop; `run_in_thread` abandons work when it is cancelled."""

    def __init__(self, config: LdapConfig, context: TlsContext, run_in_thread: ThreadRunner) -> None:
        self._config = config
        self._context = context
        self._run_in_thread = run_in_thread
        self._idle: deque[_Idle] = deque()  # threads take and put: its methods are atomic
        self._is_closed = False
        self.name = config.name

    async def look_up(self, name: str) -> Found | None:
        """Return the user whose entry the filter finds. Raises SourceError."""
        return await self._in_time(lambda request: self._searched(name, request))

    async def check(self, found: Found | None, password: str, address: str | None) -> Verdict:  # noqa: ARG002
        """Return whether the user's entry can bind with this password. Raises SourceError."""
        # Nobody has this DN, so the server refuses; it need not even be below an entry that exists.
        entry = found.entry if found is not None else f"cn={secrets.token_hex(8)},{self._config.base}"
        return await self._in_time(lambda request: self._bound(entry, password.encode(), request))

    async def rehearse(self) -> None:
        """Connect, log in and search as at a look-up, for somebody who is not there. Raises SourceError."""
        await self.look_up(f"{secrets.token_hex(8)}@example.invalid")

    def close(self) -> None:
        """Close the connections that have nothing to do, and keep none from now on."""
        self._is_closed = True
        while self._idle:
            with suppress(IndexError):
                _close(self._idle.pop().line.connection)

    async def _in_time(self, work: Callable[[_Request], T]) -> T:
        """Do blocking work in a thread. Raises SourceError, after `timeout` at the latest."""
        request = _Request(self._config.timeout_s + GRACE_S)
        try:
            with trio.fail_after(self._config.timeout_s):
                return await self._run_in_thread(lambda: work(request))
        except LIBRARY_ERRORS as error:
            raise self._error(f"the answer makes no sense: {type(error).__name__} {_told(error)}", "url") from error
        except trio.TooSlowError:
            raise self._error(f"there was no answer within {self._config.timeout_s:g} s", "timeout") from None
        finally:
            request.give_up()

    def _searched(self, name: str, request: _Request) -> Found | None:
        """Search on a connection that is idle, or on a new one. Raises SourceError."""
        while self._idle:
            with suppress(*LIBRARY_ERRORS):  # taken by another thread; or the server has closed it meanwhile
                idle = self._idle.pop()
                if time.monotonic() < idle.until_s:
                    return self._search(idle.line, name, request)
                _close(idle.line.connection)
        try:
            return self._search(_Line(self._service_connection(request), time.monotonic() + AGE_MAX_S), name, request)
        except LIBRARY_ERRORS as error:
            raise self._error(f"the search failed: {_told(error)}", "filter") from error

    def _search(self, line: _Line, name: str, request: _Request) -> Found | None:
        """Raises SourceError, LDAPException."""
        connection = line.connection
        config, text = self._config, filter_for(self._config.filter, name)
        named = (config.user_attribute, config.quota_attribute, config.disabled_attribute)
        wanted = [each for each in named if each is not None]
        limit_s = _whole(config.timeout_s)
        try:
            request.use(connection)
            connection.search(config.base, text, SUBTREE, attributes=wanted, size_limit=ENTRIES_MAX, time_limit=limit_s)
        except LIBRARY_ERRORS:
            _close(connection)
            raise
        code, described = connection.result["result"], connection.result["description"]
        entries = [each for each in connection.response or () if each["type"] == "searchResEntry"]
        if code in {SUCCESS, SIZE_LIMIT_EXCEEDED}:
            request.let_go()
            self._keep(line)
        else:
            _close(connection)
        if len(entries) > 1:
            raise EntryError(f"{self.name}: the filter finds more than one entry, such as {entries[0]['dn']}")
        if code != SUCCESS:
            key = KEYS_BY_RESULT.get(described, "filter")
            raise self._error(f"the search below {config.base!r} failed: {described}", key)
        return self._found(entries[0]) if entries else None

    def _keep(self, line: _Line) -> None:
        """Keep a connection for another search, if there is room."""
        if self._is_closed or len(self._idle) >= IDLE_MAX:
            _close(line.connection)
        else:
            self._idle.append(_Idle(line, min(time.monotonic() + IDLE_S, line.old_at_s)))

    def _found(self, entry: Mapping[str, object]) -> Found:
        """Return the user of an entry. Raises EntryError."""
        values = _values(entry["raw_attributes"])
        dn = str(entry["dn"])
        return Found(self._own_name(dn, values), dn, self._is_disabled(values), *self._quota(values))

    def _own_name(self, dn: str, values: Mapping[str, Sequence[str]]) -> str:
        """Return the user's own name in lower case, which is one however the name was written. Raises EntryError."""
        attribute = self._config.user_attribute
        named = values.get(attribute.lower(), ())
        if len(named) != 1:
            raise EntryError(f"{self.name}: {dn} has {len(named) or 'no'} values of {attribute}")
        return named[0].lower()

    def _is_disabled(self, values: Mapping[str, Sequence[str]]) -> bool:
        attribute = self._config.disabled_attribute
        return attribute is not None and any(
            value.lower() not in NOT_DISABLED for value in values.get(attribute.lower(), ())
        )

    def _quota(self, values: Mapping[str, Sequence[str]]) -> tuple[dict[str, int | None], str | None]:
        """Return the limits that an entry sets, and what is wrong with others."""
        attribute = self._config.quota_attribute
        return quota_of_all(values.get(attribute.lower(), ()) if attribute is not None else ())

    def _bound(self, dn: str, password: bytes, request: _Request) -> Verdict:
        """Bind as an entry. Raises SourceError."""
        connection = self._connected(dn, password, request)
        try:
            connection.bind()
        except LIBRARY_ERRORS as error:
            raise self._error(f"the log-in of {dn} failed: {_told(error)}", "url") from error
        finally:
            described = (connection.result or {}).get("description")
            code = (connection.result or {}).get("result")
            _close(connection)
        if code in UNAVAILABLE:
            raise self._error(f"the log-in of {dn} failed: {described}", "url")
        if code != SUCCESS and code not in REFUSED:
            raise EntryError(f"{self.name}: the log-in of {dn} failed: {described}")
        return Verdict(code == SUCCESS, f"its log-in answers {described}")

    def _service_connection(self, request: _Request) -> Connection:
        """Return a connection that may search. Raises SourceError."""
        config = self._config
        password = None if config.password_file is None else self._password(config.password_file)
        connection = self._connected(config.bind_dn, password, request)
        try:
            connection.bind()
        except LIBRARY_ERRORS as error:
            _close(connection)
            raise self._error(f"the log-in failed: {_told(error)}", "bind_dn") from error
        if connection.result["result"] != SUCCESS:
            described = connection.result["description"]
            _close(connection)
            who = config.bind_dn or "nobody (there is no bind_dn)"
            raise self._error(f"the log-in of {who} was refused: {described}", "bind_dn")
        return connection

    def _connected(self, dn: str | None, password: bytes | None, request: _Request) -> Connection:
        """Return a connection that has not logged in, with TLS if configured. Raises SourceError.

        `password`: the library sends octets as they are; of a text it drops some characters, and refuses others.
        """
        config = self._config
        context = self._context()
        connection = None
        try:
            server = Server(
                config.host,
                config.port,
                use_ssl=config.begins_with_tls,
                tls=None if context is None else _VerifiedTls(context),
                get_info=NONE,
                connect_timeout=config.timeout_s,
            )
            authentication = SIMPLE if dn is not None else None
            connection = Connection(
                server,
                dn,
                password,  # type: ignore[arg-type]  # the stubs know of text alone
                authentication=authentication,
                client_strategy=SYNC,
                auto_referrals=False,
                check_names=False,
                raise_exceptions=False,
                receive_timeout=_whole(config.timeout_s),
            )
            connection.open(read_server_info=False)
            request.use(connection)
        except LIBRARY_ERRORS as error:
            if connection is not None:
                _close(connection)
            raise self._unverified(error) or self._error(f"there is no connection: {_told(error)}", "url") from error
        try:
            if config.starttls and not connection.start_tls(read_server_info=False):
                described = connection.result["description"]
                _close(connection)
                raise self._error(f"StartTLS was refused: {described}", "starttls")
        except LIBRARY_ERRORS as error:
            _close(connection)
            raise self._unverified(error) or self._error(f"StartTLS failed: {_told(error)}", "starttls") from error
        return connection

    def _password(self, file: Path) -> bytes:
        """Return the first line of the file: it is read anew for each connection. Raises SourceError."""
        try:
            password = first_line(file)
        except OSError as error:
            raise self._error(f"{file} cannot be read: {error}", "password_file") from error
        if not password:  # a bind without a password would succeed as nobody (RFC 4513 section 5.1.2)
            raise self._error(f"the first line of {file} is empty", "password_file")
        return password

    def _unverified(self, error: Exception) -> LdapError | None:
        """Return the error if it was the server's certificate, of which the library keeps the text alone."""
        refusal = UNVERIFIED.search(str(error).replace("\\", ""))
        if refusal is None:
            return None
        return self._error(f"the server's certificate cannot be verified: {refusal[1]}", key_of_refusal(refusal[1]))

    def _error(self, text: str, key: str) -> LdapError:
        return LdapError(f"{self.name}: {text}", key)


class LdapError(SourceError):
    """Lack of a usable answer. `key`: the key of [ldap] to look at first."""

    def __init__(self, text: str, key: str) -> None:
        super().__init__(text)
        self.key = key


class _VerifiedTls(Tls):
    """TLS whose certificates OpenSSL verifies, with the server's name: the library's own way is deprecated."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    def wrap_socket(self, connection: Connection, do_handshake: bool = False) -> None:  # noqa: FBT001, FBT002, ARG002
        """Encrypt a connection, which both kinds of TLS call."""
        if isinstance(connection.socket, BoundedSocket):
            connection.socket.encrypt(self._context, connection.server.host)
        else:
            connection.socket = self._context.wrap_socket(connection.socket, server_hostname=connection.server.host)


def _values(raw: object) -> dict[str, list[str]]:
    """Return the values of an entry's attributes, by their names in lower case."""
    assert isinstance(raw, Mapping)
    return {str(name).lower(): [value.decode("utf-8", "replace") for value in values] for name, values in raw.items()}


def _whole(seconds: float) -> int:
    return ceil(seconds)


def _told(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _close(connection: Connection) -> None:
    opened = connection.socket
    with suppress(*LIBRARY_ERRORS):
        connection.unbind()
    if opened is not None:  # which the library leaves open where it fails
        opened.close()
