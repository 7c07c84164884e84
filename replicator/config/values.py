"""Rules of single values: each function takes a parsed TOML value and returns the typed value.

All of them raise ValueError with a text that says what is expected; the loader adds file and line.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from decimal import Decimal
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from replicator.config.addresses import Address, Network, PeerAddress, SocketPath
from replicator.runtime.addresses import is_loopback
from replicator.runtime.sizes import SIZE_MAX_BYTES, parse_size

E = TypeVar("E", bound=StrEnum)

PathParser = Callable[[object], Path]
"""Parser of a path: any one (`path`), or that of an existing file (`existing_file`)."""

DAY_S = 86_400.0

# An origin is `SID.boot`, and spaces separate wire fields, so a SID has no dot and no space (design section 2).
SID = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
SEPARATOR = re.compile(r"[*%/|!^~&=?$;]")
CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)")
# Decimal, so that "5177ms" and 5.177 are the same number.
DURATION_UNITS_S = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86_400)}
DURATION_MAX_S = 3650 * DAY_S
"""Ten years in seconds: beyond that, sums with a wall clock are meaningless."""

ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%]{2,64})\]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})")
S3_URL = re.compile(r"s3://[A-Za-z0-9][A-Za-z0-9._-]{0,254}(?:/[^/?#\\]{1,255}){0,16}/?")
"""URL without a query or a password, which do not belong in a file that is passed around."""
ENDPOINT = re.compile(rf"(https?)://{ADDRESS.pattern}/?")
PLACES_MAX = 100
"""Entries of a list that is compared with each request."""
WORD = re.compile(r"[\x21-\x7e]{1,1024}")
HTTPS_URL = re.compile(r"https://(?:\[[0-9A-Fa-f:.]{2,64}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?/[!-~]{0,1024}")
"""URL without a user or a password, and with a path."""
PATH_MAX = 4096
"""PATH_MAX of Linux."""
UNIX = "unix:"
SOCKET_PATH_MAX_BYTES = 107
"""Linux, unix(7): `sun_path` has 108 bytes, the last of which is zero."""


def text(value: object) -> str:
    """Parse a string."""
    if not isinstance(value, str):
        raise ValueError(f"expected a string in quotes, not {_shown(value)}")  # noqa: TRY004 - one error type a file
    return value


def boolean(value: object) -> bool:
    """Parse true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, not {_shown(value)}")  # noqa: TRY004 - the same
    return value


def patterns(value: object) -> tuple[str, ...]:
    """Parse a list of patterns of users' names, in which `*` is any text and `?` any character."""
    if not isinstance(value, list) or not 0 < len(value) <= PLACES_MAX:
        raise ValueError(
            f'expected a list of 1 to {PLACES_MAX} patterns such as ["*@example.org"], not {_shown(value)}'
        )
    return tuple(map(text, value))


def separator(value: object) -> str:
    """Parse a character that stands between two names, and in none of them."""
    return _matching(value, SEPARATOR, "one of these characters: * % / | ! ^ ~ & = ? $ ;")


def sid(value: object) -> str:
    """Parse a node id."""
    return _matching(value, SID, "a node id: 1 to 32 of a-z, 0-9 and -, for example 'dc1'")


def sids(value: object) -> tuple[str, ...]:
    """Parse a list of node ids."""
    if not isinstance(value, list) or len(value) > PLACES_MAX:
        raise ValueError(f'expected a list of at most {PLACES_MAX} node ids such as ["dc3"], not {_shown(value)}')
    return tuple(map(sid, value))


def cluster_name(value: object) -> str:
    """Parse a cluster name, which is an atom on the wire."""
    return _matching(value, CLUSTER, "a cluster name: 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")


def whole_number(lowest: int, highest: int, why_no_more: str = "") -> Callable[[object], int]:
    """Return a parser of an integer within inclusive bounds. `why_no_more` explains the upper one."""
    bounds = f"from {lowest} to {highest}" + (f" ({why_no_more})" if why_no_more else "")

    def parse(value: object) -> int:
        # bool is a subclass of int, but `copies = true` is a mistake.
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ValueError(f"expected a whole number {bounds}, not {_shown(value)}")
        return value

    return parse


def duration(lowest_s: float, highest_s: float = DURATION_MAX_S) -> Callable[[object], float]:
    """Return a parser of a duration such as "500ms" or "7d", in seconds."""

    def parse(value: object) -> float:
        match = DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"expected a duration such as '500ms', '4s', '5m', '2h' or '7d', not {_shown(value)}")
        seconds = float(Decimal(match[1]) * DURATION_UNITS_S[match[2]])
        if not lowest_s <= seconds <= highest_s:
            highest = f"{highest_s / DAY_S:g}d" if highest_s >= DAY_S else f"{highest_s:g}s"
            raise ValueError(f"expected a duration from {lowest_s:g}s to {highest}, not {value!r}")
        return seconds

    return parse


def size(lowest_bytes: int, highest_bytes: int = SIZE_MAX_BYTES) -> Callable[[object], int]:
    """Return a parser of a size such as "64KiB", in bytes."""

    def parse(value: object) -> int:
        size_bytes = parse_size(value) if isinstance(value, str) else None
        if size_bytes is None:
            raise ValueError(f"expected a size such as '512B', '64KiB', '10MiB' or '1GiB', not {_shown(value)}")
        if not lowest_bytes <= size_bytes <= highest_bytes:
            raise ValueError(f"expected a size from {lowest_bytes} to {highest_bytes} bytes, not {value!r}")
        return size_bytes

    return parse


def address(lowest_port: int) -> Callable[[object], Address]:
    """Return a parser of `host:port` or `[IPv6]:port`. Port 0, if `lowest_port` allows it, takes any free port."""

    def parse(value: object) -> Address:
        match = ADDRESS.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"expected an address such as '127.0.0.1:4420' or '[::1]:4420', not {_shown(value)}")
        port = int(match[3])
        if not lowest_port <= port <= 65_535:
            raise ValueError(f"expected a port from {lowest_port} to 65535, not {port}")
        return Address(match[1] or match[2], port)

    return parse


def peer_address(lowest_port: int, directory: Path) -> Callable[[object], PeerAddress]:
    """Return a parser of what `address` parses, and of `unix:PATH`; relative paths start at `directory`."""
    parse_address = address(lowest_port)

    def parse(value: object) -> PeerAddress:
        if not isinstance(value, str) or not value.startswith(UNIX):
            return parse_address(value)
        socket = path(directory)(value.removeprefix(UNIX))
        if len(os.fsencode(socket)) > SOCKET_PATH_MAX_BYTES:
            raise ValueError(f"expected a socket's path of at most {SOCKET_PATH_MAX_BYTES} bytes, not {str(socket)!r}")
        return SocketPath(socket)

    return parse


def networks(value: object) -> tuple[Network, ...]:
    """Parse a list of IP addresses and networks."""
    example = 'a list such as ["127.0.0.1", "10.0.0.0/8"]'
    if not isinstance(value, list):
        raise ValueError(f"expected {example}, not {_shown(value)}")  # noqa: TRY004 - one error type a file
    return tuple(_network(item, example) for item in value)


def _network(value: object, example: str) -> Network:
    try:
        return ip_network(text(value))
    except ValueError as error:
        raise ValueError(f"expected {example}; {_shown(value)} is none: {error}") from error


def choice(names: type[E]) -> Callable[[object], E]:
    """Return a parser of an enumeration's values."""

    def parse(value: object) -> E:
        for name in names:
            if value == name.value:
                return name
        raise ValueError(f"expected one of {_names(names)}, not {_shown(value)}")

    return parse


def path(directory: Path) -> Callable[[object], Path]:
    """Return a parser of paths; relative paths start at `directory`."""

    def parse(value: object) -> Path:
        name = text(value)
        if not name or "\0" in name or len(name) > PATH_MAX:
            raise ValueError(f"expected a path of 1 to {PATH_MAX} characters, not {_shown(value)}")
        return directory / name

    return parse


def existing_file(directory: Path) -> Callable[[object], Path]:
    """Return a parser of paths to existing files."""
    resolve = path(directory)

    def parse(value: object) -> Path:
        file = resolve(value)
        try:
            is_file = file.is_file()
        except OSError as error:  # such as a name that is too long, or a directory that may not be searched
            raise ValueError(f"{str(file)!r} cannot be read: {error.strerror}") from None
        if not is_file:
            raise ValueError(f"there is no file {str(file)!r}")
        return file

    return parse


def unreadable(file: Path) -> OSError | None:
    """Return the error of an attempt to read the file, or None if it can be read."""
    try:
        # Opening a pipe would wait for its other end.
        if not file.is_file():
            file.stat()
            return IsADirectoryError(errno.EISDIR, "it is not an ordinary file")
        with file.open("rb"):
            return None
    except OSError as error:
        return error


def object_store_url(directory: Path) -> Callable[[object], str]:
    """Return a parser of `file:path` (a relative path starts at `directory`) or `s3://bucket/prefix`."""

    def parse(value: object) -> str:
        url = text(value)
        scheme, _, rest = url.partition(":")
        if scheme == "file" and rest.strip("/"):
            # file:relative and file:/absolute as they are written; file:///absolute percent-encoded (RFC 8089).
            name = unquote(urlsplit(url).path) if rest.startswith("//") else rest
            return path(directory)(name).as_uri()
        if _is_s3(url):
            return url
        raise ValueError(f"expected 'file:DIRECTORY' or 's3://BUCKET/PREFIX', not {_shown(value)}")

    return parse


def places(directory: Path) -> Callable[[object], tuple[str, ...]]:
    """Return a parser of a list of paths, made absolute as by `path`, and of `s3://bucket/prefix`."""
    resolve = path(directory)

    def parse(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > PLACES_MAX:
            raise ValueError(f"expected a list of at most {PLACES_MAX} directories, not {_shown(value)}")
        return tuple(place if _is_s3(place := text(each)) else os.path.normpath(resolve(each)) for each in value)

    return parse


def endpoint(value: object) -> str:
    """Parse `https://host:port` of an object store; http is accepted on loopback only."""
    match = ENDPOINT.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < int(match[4]) <= 65_535:
        raise ValueError(f"expected an endpoint such as 'https://objects.example.org:443', not {_shown(value)}")
    if match[1] == "http" and not is_loopback(match[2] or match[3]):
        raise ValueError(
            "expected https: over http, others could read who has mail from where, and replace the objects"
        )
    return match[0].rstrip("/")


def word(value: object) -> str:
    """Parse a string of printable ASCII without spaces, such as a scope (RFC 6749 section 3.3)."""
    return _matching(value, WORD, "1 to 1024 printable ASCII characters without spaces")


def words(value: object) -> tuple[str, ...]:
    """Parse a list of what `word` parses."""
    if not isinstance(value, list) or len(value) > PLACES_MAX:
        raise ValueError(f'expected a list of at most {PLACES_MAX} words such as ["mail"], not {_shown(value)}')
    return tuple(map(word, value))


LDAP_URL = re.compile(r"ldaps?://(?:\[[0-9A-Fa-f:.]{2,64}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?/?")
ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
FILTER_VARIABLES = re.compile(r"%(.?)")


def ldap_url(value: object) -> str:
    """Parse the URL of an LDAP server."""
    url = _matching(value, LDAP_URL, "a URL such as 'ldaps://ldap.example.org' or 'ldap://127.0.0.1:389'")
    if not _has_port(urlsplit(url)):
        raise ValueError(f"expected a port from 1 to 65535 in the URL, not {_shown(value)}")
    return url.rstrip("/")


ENDPOINT_URL = re.compile(rf"http{HTTPS_URL.pattern.removeprefix('https')}")


def endpoint_url(value: object) -> str:
    """Parse the URL of a program that knows users. `http://` leads to this machine only."""
    url = text(value)
    parsed = urlsplit(url) if HTTPS_URL.fullmatch(url) or ENDPOINT_URL.fullmatch(url) else None
    if parsed is None or parsed.fragment or "\\" in url or not _has_port(parsed):
        raise ValueError(f"expected a URL such as 'https://auth.example.org/users', not {_shown(value)}")
    if parsed.scheme == "http" and not is_loopback(parsed.hostname or ""):
        raise ValueError(f"passwords would cross the network to {parsed.hostname} unprotected; write https://")
    return url


def ldap_filter(value: object) -> str:
    """Parse a filter of LDAP with variables. Its parentheses are checked here, all else by the search."""
    name = text(value)
    used = FILTER_VARIABLES.findall(name)
    if not set(used) <= {"u", "n", "d"} or not {"u", "n"} & set(used):
        raise ValueError(f"expected a filter with %u (the whole name) or %n (the part before @), and %d, not {name!r}")
    if not name.startswith("(") or not name.endswith(")") or name.count("(") != name.count(")"):
        raise ValueError(f"expected a filter in parentheses, such as '(mail=%u)', not {name!r}")
    return name


def attribute(value: object) -> str:
    """Parse the name of an attribute of LDAP."""
    return _matching(value, ATTRIBUTE, "the name of an attribute, such as 'uid'")


def keys_location(file: Callable[[object], Path]) -> Callable[[object], Path | str]:
    """Return a parser of an `https://` URL, or else of a path, which `file` parses."""

    def parse(value: object) -> Path | str:
        name = text(value)
        if "://" not in name:
            return file(name)
        parsed = urlsplit(name) if HTTPS_URL.fullmatch(name) else None
        if parsed is None or parsed.fragment or "\\" in name or not _has_port(parsed):
            raise ValueError(
                "expected a file, or a URL such as 'https://id.example.org/keys': over http, anybody on the way could"
                f" put in keys; not {_shown(value)}"
            )
        return name

    return parse


def _has_port(url: SplitResult) -> bool:
    """Return True if the URL's port, if it has one, is valid."""
    try:
        return url.port is None or url.port > 0
    except ValueError:
        return False


def _is_s3(url: str) -> bool:
    return S3_URL.fullmatch(url) is not None and not {".", ".."} & set(url.split("/"))


def _matching(value: object, pattern: re.Pattern[str], expected: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"expected {expected}; not {_shown(value)}")
    return value


def _names(names: type[StrEnum]) -> str:
    return ", ".join(repr(name.value) for name in names)


def _shown(value: object) -> str:
    # A long value would hide the message.
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
