"""A Dovecot on this machine: its `auth-userdb` socket knows who is a user, its `auth-client` socket checks passwords.

Both speak lines of fields with tabs between them (Dovecot's "Authentication Protocol"). The sockets are local, so each
request has a connection of its own.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from protocol.units import KIB
from replicator.config import DovecotAuthConfig
from replicator.user_sources.limits import quota_of_all
from replicator.users import EntryError, Found, SourceError, Verdict

ANSWER_BYTES_MAX = 64 * KIB
"""Octets of all that Dovecot says on a connection: a user has as many fields as its databases give."""

USERDB, AUTH = "userdb", "auth"
USERDB_VERSION, AUTH_VERSION = "1", "1"
"""The first number of the versions, which must be the same at both ends; Dovecot 2.0 to 2.4 have these."""

PROCESS_MIN, PROCESS_MAX = 1 << 23, (1 << 31) - 1
"""Ids of clients: Dovecot refuses one that it knows already, and real processes have those below."""

_ESCAPES = {"\0": "0", "\1": "1", "\t": "t", "\r": "r", "\n": "n"}
_UNESCAPED = {letter: character for character, letter in _ESCAPES.items()}


class DovecotError(SourceError):
    """Lack of a usable answer. `key`: the key of [dovecot] to look at first."""

    def __init__(self, text: str, key: str) -> None:
        super().__init__(text)
        self.key = key


class DovecotSource:
    """The configured Dovecot. Belongs to the event loop."""

    def __init__(self, config: DovecotAuthConfig) -> None:
        self._config = config
        self.name = config.name

    async def look_up(self, name: str) -> Found | None:
        """Return the user that Dovecot's databases know by this name. Raises SourceError."""
        async with self._connected(self._config.userdb, USERDB) as dovecot:
            dovecot.check_version(await dovecot.line(), USERDB_VERSION)
            await dovecot.say("VERSION", USERDB_VERSION, "1")
            answer, fields = await _asked(dovecot, 1, name)
            # Dovecot fails alike for an entry without sense and for a database that is down: ask about another name.
            fails = answer == "FAIL" and (await _asked(dovecot, 2, _name_of_nobody()))[0] == "FAIL"
        if fails or (answer == "USER" and not fields):
            raise DovecotError(f"{dovecot.name}: it cannot look users up: {_reason(fields)}", USERDB)
        if answer == "FAIL":
            raise EntryError(f"{dovecot.name}: it cannot look {name!r} up: {_reason(fields)}")
        if answer == "NOTFOUND":
            return None
        user = fields[0]
        limits, fault = quota_of_all(_quotas(fields[1:]))
        return Found(user.lower(), user, limits=limits, fault=fault)

    async def check(self, found: Found | None, password: str, address: str | None) -> Verdict:
        """Return whether Dovecot says that the password is right, and lets the user in here.

        Raises SourceError, which is an EntryError as soon as the password was sent: what then fails may be this log-in
        alone, and no client may make the node unhealthy.
        """
        user = secrets.token_hex(8) if found is None else found.entry  # a name that nobody has
        response = base64.b64encode(f"\0{user}\0{password}".encode()).decode()  # RFC 4616
        # The node slows guessing by itself. Dovecot's own delay for an address would hold up everybody there.
        options = ["service=imap", "secured", "no-penalty", *([f"rip={address}"] if address is not None else [])]
        is_sent = False
        try:
            async with self._connected(self._config.auth, AUTH) as dovecot:
                await self._greeted(dovecot)
                is_sent = True
                await dovecot.say("AUTH", "1", "PLAIN", *options, f"resp={response}")
                answer, fields = await dovecot.answer(1, "OK", "FAIL", "CONT")
        except DovecotError as error:
            if not is_sent:
                raise
            is_late = error.key == "timeout"
            advice = "; a wrong password takes its auth_failure_delay, which must be below `timeout`" if is_late else ""
            raise EntryError(f"{error}{advice}") from error
        named = _named(fields)
        has_failed = named.get("code") == "temp_fail" or "temp" in named  # the latter until Dovecot 2.2
        if answer == "CONT" or (answer == "FAIL" and has_failed):
            whose = "a password" if found is None else f"the password of {user!r}"
            raise EntryError(f"{dovecot.name}: it cannot check {whose} now: {_reason(fields)}")
        if answer == "FAIL" or found is None:
            told = next((word for word in ("user_disabled", "pass_expired") if word in named), named.get("code"))
            return Verdict(is_right=False, text=f"Dovecot refuses it{f' ({told})' if told else ''}")
        if (owner := named.get("user", user)).lower() != found.user:
            raise EntryError(f"{dovecot.name}: the log-in of {user!r} is one of {owner!r}")
        for word in ("nologin", "proxy"):
            if word in named:
                return Verdict(is_right=False, text=f"Dovecot accepts it, but lets nobody in here ({word})")
        return Verdict(is_right=True, text="Dovecot accepts it")

    async def rehearse(self) -> None:
        """Ask about somebody who is not there, and whether passwords can be checked. Raises SourceError."""
        await self.look_up(_name_of_nobody())
        async with self._connected(self._config.auth, AUTH) as dovecot:
            await self._greeted(dovecot)

    def close(self) -> None:
        """Do nothing: each request has a connection of its own."""

    async def _greeted(self, dovecot: _Connection) -> None:
        """Exchange greetings with the socket that checks passwords. Raises SourceError."""
        await dovecot.say("VERSION", AUTH_VERSION, "1")
        await dovecot.say("CPID", str(PROCESS_MIN + secrets.randbelow(PROCESS_MAX - PROCESS_MIN)))
        dovecot.check_version(await dovecot.line(), AUTH_VERSION)
        mechanisms = set()
        while (fields := await dovecot.line()) != ["DONE"]:
            if fields[0] == "MECH":
                mechanisms.update(fields[1:2])
        if "PLAIN" not in mechanisms:
            raise DovecotError(f"{dovecot.name}: it does not take PLAIN; add it to auth_mechanisms", AUTH)

    @asynccontextmanager
    async def _connected(self, path: Path, key: str) -> AsyncIterator[_Connection]:
        """Yield a connection to a socket. Raises SourceError, after `timeout` at the latest."""
        timeout_s, name = self._config.timeout_s, f"Dovecot at {path}"
        try:
            with trio.fail_after(timeout_s):
                async with await trio.open_unix_socket(path) as stream:
                    yield _Connection(stream, name, key)
        except (OSError, trio.BrokenResourceError) as error:
            raise DovecotError(f"{name}: there is no connection: {error}", key) from error
        except trio.TooSlowError:
            raise DovecotError(f"{name}: there was no answer within {timeout_s:g} s", "timeout") from None


class _Connection:
    """A connection to one of the sockets. All that waits raises DovecotError, OSError, trio.BrokenResourceError."""

    def __init__(self, stream: trio.SocketStream, name: str, key: str) -> None:
        self._stream = stream
        self.name = name
        self._key = key
        self._received = bytearray()
        self._left_bytes = ANSWER_BYTES_MAX

    async def say(self, *fields: str) -> None:
        """Send a line."""
        line = "\t".join(_escaped(field) for field in fields)
        await self._stream.send_all(f"{line}\n".encode("utf-8", "replace"))

    async def line(self) -> list[str]:
        """Return the fields of the next line."""
        while (end := self._received.find(b"\n")) < 0:
            received = await self._stream.receive_some()
            self._left_bytes -= len(received)
            if not received:
                raise DovecotError(f"{self.name}: it has closed the connection; its log says why", self._key)
            if self._left_bytes < 0:
                raise DovecotError(f"{self.name}: the answer is larger than {ANSWER_BYTES_MAX} bytes", self._key)
            self._received += received
        line = self._received[:end].decode("utf-8", "replace")
        del self._received[: end + 1]
        return [_unescaped(field) for field in line.split("\t")]

    async def answer(self, request: int, *words: str) -> tuple[str, list[str]]:
        """Return the word of the answer to a request, which is one of these, and its fields. Skip other lines."""
        while True:
            word, *fields = await self.line()
            if word in words and fields[:1] == [str(request)]:
                return word, fields[1:]

    def check_version(self, fields: Sequence[str], version: str) -> None:
        """Raise DovecotError unless this is a line with this version."""
        if fields[:2] != ["VERSION", version]:
            raise DovecotError(f"{self.name}: what answers at the path is another socket", self._key)


async def _asked(dovecot: _Connection, request: int, name: str) -> tuple[str, list[str]]:
    """Return the word and the fields of the answer about a user. Raises as the connection."""
    await dovecot.say("USER", str(request), name, "service=lmtp")
    return await dovecot.answer(request, "USER", "NOTFOUND", "FAIL")


def _name_of_nobody() -> str:
    return f"{secrets.token_hex(8)}@example.invalid"


def _reason(fields: Sequence[str]) -> str:
    """Return why Dovecot has failed, by the fields of its answer."""
    return _named(fields).get("reason", "its log says why")


def _quotas(fields: Sequence[str]) -> Iterator[str]:
    """Yield the quotas that fields of a user set for all folders, in the ways of Dovecot 2.3 and 2.4."""
    for name, _, value in (field.partition("=") for field in fields):
        if (name.startswith("quota_rule") and value.startswith("*:")) or name == "quota_storage_size":
            yield value
        elif name == "quota_message_count":
            yield f"*:messages={value}"


def _named(fields: Sequence[str]) -> Mapping[str, str]:
    """Return fields by their names. Those that are a name alone have an empty value."""
    return {name: value for name, _, value in (field.partition("=") for field in fields)}


def _escaped(field: str) -> str:
    return "".join(f"\1{_ESCAPES[each]}" if each in _ESCAPES else each for each in field)


def _unescaped(field: str) -> str:
    first, *others = field.split("\1")
    return first + "".join(_UNESCAPED.get(each[:1], each[:1]) + each[1:] for each in others)
