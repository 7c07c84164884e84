"""Where an account is at an IMAP server: `imaps://USER@HOST[:PORT]`, or `imap://` (RFC 5092 section 3, in part)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

PORTS: Final = {"imap": 143, "imaps": 993}


@dataclass(frozen=True, slots=True)
class ImapUrl:
    """A server, and a user there. `password`: only if the URL has it."""

    host: str
    port: int
    tls: bool
    user: str
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'imaps' if self.tls else 'imap'}://{self.user}@{host}:{self.port}"


def is_imap_url(text: str) -> bool:
    """Return True if this names an IMAP server, and no file."""
    return text.partition("://")[0].lower() in PORTS and "://" in text


def parse_imap_url(text: str) -> ImapUrl:
    """Return what the URL names. Raises ValueError; the text says what is wrong, and has no password."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL such as imaps://alice@mail.example.org: {error}") from None
    scheme = parts.scheme.lower()
    if scheme not in PORTS or not parts.hostname or not parts.username or parts.query or parts.fragment:
        raise ValueError("not of the form imaps://USER@HOST[:PORT]")
    if parts.path.strip("/"):
        raise ValueError("the URL names a folder; all folders of an account are imported")
    if port == 0:
        raise ValueError("there is no port 0")
    password = None if parts.password is None else unquote(parts.password)
    return ImapUrl(parts.hostname, port or PORTS[scheme], scheme == "imaps", unquote(parts.username), password)
