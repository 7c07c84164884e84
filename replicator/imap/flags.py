r"""Flags as a mailbox spells them. Pure.

Flags are equal in any case of letters (RFC 9051 section 2.3.2): system flags have the RFC's spelling, a keyword the
one that the mailbox has already. `\Recent` is the server's alone, and what clients say of it is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from protocol.values import UidSet
from replicator.imap.refusals import CommandFailedError
from replicator.imap.responses import RECENT, SYSTEM_FLAGS
from replicator.view import MailboxView

MAX_KEYWORDS = 100  # of a mailbox: each is announced at every SELECT and indexed in every view of it
MAX_KEYWORD_BYTES = 64  # clients' own keywords have about 20; each stands in every row that has it


def keywords(view: MailboxView) -> list[str]:
    """The keywords in use, by name."""
    return sorted(flag for flag in view.by_flag if not flag.startswith("\\"))


def known_flags(flags: Iterable[str], in_use: Iterable[str]) -> frozenset[str]:
    """The flags in their spelling; those that no message could have are left out. To search for and to remove."""
    return frozenset(_spelled(flags, {keyword.lower(): keyword for keyword in in_use}))


def settable_flags(flags: Iterable[str], in_use: Iterable[str]) -> frozenset[str]:
    """The flags in their spelling, for a mailbox with these keywords. Raises CommandFailedError."""
    spellings = {keyword.lower(): keyword for keyword in in_use}
    wanted = frozenset(_spelled(flags, spellings))
    for flag in wanted:
        if flag.startswith("\\") and flag not in SYSTEM_FLAGS:
            raise CommandFailedError(f"{flag} is no system flag; keywords have no backslash", "CANNOT")
        if len(flag) > MAX_KEYWORD_BYTES:
            raise CommandFailedError(f"A keyword may have {MAX_KEYWORD_BYTES} bytes, not {len(flag)}", "LIMIT")
    after = {flag.lower() for flag in wanted if not flag.startswith("\\")} | spellings.keys()
    if len(after) > max(MAX_KEYWORDS, len(spellings)):
        raise CommandFailedError(f"A mailbox may have {MAX_KEYWORDS} keywords; remove some first", "LIMIT")
    return wanted


def flags_in_use(view: MailboxView, uids: UidSet) -> frozenset[str]:
    """All flags that any of these messages has."""
    return frozenset(
        flag
        for flag, holders in view.by_flag.items()
        if any(next(holders.irange(low, high), None) is not None for low, high in uids.ranges)
    )


def _spelled(flags: Iterable[str], spellings: dict[str, str]) -> Iterator[str]:
    system = {flag.lower(): flag for flag in SYSTEM_FLAGS}
    new: dict[str, str] = {}
    for flag in flags:
        lower = flag.lower()
        if lower != RECENT.lower():
            yield system.get(lower) or spellings.get(lower) or new.setdefault(lower, flag)
