"""Syntax of the arguments of LMTP commands (RFC 5321 section 4.1.2, RFC 6531 section 3.3).

Slightly more lenient than the grammar, as every mail server is: spaces after the colon, local parts that begin or end
with dots, addresses without a domain (our users may have none). Source routes are ignored (RFC 5321 appendix C).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# qtext and quoted-pair; `local` keeps the quotes, and `Address.name` removes them.
QUOTED = r'"(?:\\[\x20-\x7e]|[^"\\\x00-\x1f\x7f])*"'
# Dot-string with any atom characters; RFC 6531 adds everything beyond ASCII.
DOT_STRING = r'[^\x00-\x20\x7f<>()\[\]\\,;:@"]+'
# address-literal or Domain.
DOMAIN = r'(?:\[[0-9A-Za-z.:-]+\]|[^\x00-\x20\x7f<>()\[\]\\,;:@"]+)'
ROUTE = r"(?:@[^\x00-\x20\x7f<>:]+:)?"

PATH = rf"<(?:{ROUTE}(?P<local>{QUOTED}|{DOT_STRING})(?:@(?P<domain>{DOMAIN}))?)?>"
PARAMETERS = r"(?P<parameters>(?: +[A-Za-z0-9][A-Za-z0-9-]*(?:=[^\x00-\x20\x7f=]+)?)*) *"
FROM = re.compile(rf"FROM: *{PATH}{PARAMETERS}", re.IGNORECASE)
TO = re.compile(rf"TO: *{PATH}{PARAMETERS}", re.IGNORECASE)

# LHLO: Domain / address-literal. It is copied into a header, so it must not end a comment or a line.
HOST = re.compile(rf"{DOMAIN} *")
HOST_MAX = 255

ADDRESS_BYTES_MAX = 512
"""Octets of an address, twice what RFC 5321 section 4.5.3.1.3 requires.

Some senders encode the recipient into their own address. An address must fit into a header line of 998 octets (RFC 5322
section 2.1.1).
"""

QUOTED_PAIR = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a path. `local` is as written, `domain` empty if there was none."""

    local: str
    domain: str

    @property
    def name(self) -> str:
        """The address without quotes, in the form of a user's name."""
        local = QUOTED_PAIR.sub(r"\1", self.local[1:-1]) if self.local.startswith('"') else self.local
        return f"{local}@{self.domain}" if self.domain else local

    def __str__(self) -> str:
        return f"{self.local}@{self.domain}" if self.domain else self.local


@dataclass(frozen=True, slots=True)
class Path:
    """The argument of MAIL or RCPT. `address` None: the null reverse-path `<>`. Parameter names are in capitals."""

    address: Address | None
    parameters: Mapping[str, str | None]


def parse_from(argument: str) -> Path | None:
    """Parse `FROM:<reverse-path> parameters`. Returns None for anything else."""
    return _path(FROM.fullmatch(argument))


def parse_to(argument: str) -> Path | None:
    """Parse `TO:<forward-path> parameters`. Returns None for anything else."""
    path = _path(TO.fullmatch(argument))
    return path if path and path.address else None


def parse_host(argument: str) -> str | None:
    """Return the client's name in LHLO, or None if it is invalid."""
    host = argument.strip(" ")
    return host if len(host) <= HOST_MAX and host.isascii() and HOST.fullmatch(host) else None


def _path(match: re.Match[str] | None) -> Path | None:
    if match is None:
        return None
    address = Address(match["local"], match["domain"] or "") if match["local"] else None
    if len(str(address).encode()) > ADDRESS_BYTES_MAX:
        return None
    pairs = (parameter.partition("=") for parameter in match["parameters"].split())
    return Path(address, {name.upper(): value if equals else None for name, equals, value in pairs})
