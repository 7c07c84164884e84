"""Address of an account at an IMAP server: `imaps://USER@HOST[:PORT]`, or `imap://` (RFC 5092 section 3, in part)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

PORTS: Final = {"imap": 143, "imaps": 993}
ESCAPES: Final = "in names and passwords, # / ? @ : % are to be written %23 %2F %3F %40 %3A %25"
WRONG_URL: Final = f"not of the form imaps://USER@HOST[:PORT]; {ESCAPES}"


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
    """Return what the URL names. Raises ValueError; the text says what is wrong, and quotes nothing: see passwords."""
    try:
        text.encode()
        parts = urlsplit(text)
        port = parts.port
        user = unquote(parts.username or "", errors="strict")
        password = None if parts.password is None else unquote(parts.password, errors="strict")
        (parts.hostname or "").encode("idna")
    except ValueError:  # also what has no UTF-8, and a host that no name can be
        raise ValueError(WRONG_URL) from None
    scheme = parts.scheme.lower()
    if scheme not in PORTS or not parts.hostname or not user or parts.query or parts.fragment:
        raise ValueError(WRONG_URL)
    if parts.path.strip("/"):
        raise ValueError(f"the URL names a folder; all folders of an account are imported ({ESCAPES})")
    if port == 0:
        raise ValueError("there is no port 0")
    return ImapUrl(parts.hostname, port or PORTS[scheme], scheme == "imaps", user, password)


def name_of_url(text: str) -> str:
    """Return the URL without a password; of one that is wrong, only the scheme."""
    try:
        return str(parse_imap_url(text))
    except ValueError:
        return f"{text.partition('://')[0].lower()}://…"
