r"""Flags as a mailbox spells them, whichever door they come through.

Flags are equal in any case of letters (RFC 9051 section 2.3.2): system flags have the RFC's spelling, a keyword the
one that the mailbox has already. Where two nodes spell a new one at once, the mailbox has both spellings, and a client
is shown one. `\Recent` is the server's alone, and what clients say of it is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from protocol.values import UidSet
from replicator.errors import FlagLimitError, InvalidFlagError
from replicator.mailstore import Folder, MailStore
from replicator.view import MailboxView

RECENT = "\\Recent"

SYSTEM_FLAGS = ("\\Answered", "\\Flagged", "\\Deleted", "\\Seen", "\\Draft")
"""RFC 3501 section 2.3.2, without `\\Recent`, which no client sets."""

MAX_KEYWORDS = 100  # of a mailbox: each is announced at every SELECT and indexed in every view of it
MAX_KEYWORD_BYTES = 64  # clients' own keywords have about 20; each stands in every row that has it

# RFC 9051 section 9: atom = 1*ATOM-CHAR, any CHAR except "(" / ")" / "{" / SP / CTL / "%" / "*" / DQUOTE / "\" / "]"
_KEYWORD = re.compile(r"[!#$&'+,\-./0-9:;<=>?@A-Z\[^_`a-z|}~]+")


def shown_once(flags: Iterable[str]) -> list[str]:
    """Each flag in one of its spellings: the first by name."""
    return sorted({flag.lower(): flag for flag in sorted(flags, reverse=True)}.values())


def keywords(view: MailboxView) -> list[str]:
    """The keywords in use, by name."""
    return shown_once(flag for flag in view.by_flag if not flag.startswith("\\"))


def removable_flags(flags: Iterable[str], view: MailboxView) -> frozenset[str]:
    """The flags in all spellings that the mailbox has; those that no message could have are left out."""
    spellings: dict[str, list[str]] = {}
    for flag in view.by_flag:
        spellings.setdefault(flag.lower(), []).append(flag)
    return frozenset(one for flag in _spelled(flags, {}) for one in spellings.get(flag.lower(), [flag]))


def settable_flags(flags: Iterable[str], in_use: Iterable[str]) -> frozenset[str]:
    """The flags in their spelling, for a mailbox with these keywords. Raises InvalidFlagError, FlagLimitError."""
    spellings = {keyword.lower(): keyword for keyword in in_use}
    wanted = frozenset(_spelled(flags, spellings))
    for flag in wanted:
        if flag not in SYSTEM_FLAGS and not _KEYWORD.fullmatch(flag):
            raise InvalidFlagError(f"'{flag[:MAX_KEYWORD_BYTES]}' is not an IMAP flag that can be set")
        if len(flag) > MAX_KEYWORD_BYTES:
            raise FlagLimitError(f"a keyword may have {MAX_KEYWORD_BYTES} bytes, not {len(flag)}")
    after = {flag.lower() for flag in wanted if not flag.startswith("\\")} | spellings.keys()
    if len(after) > max(MAX_KEYWORDS, len(spellings)):
        raise FlagLimitError(f"a mailbox may have {MAX_KEYWORDS} keywords; remove some first")
    return wanted


async def settable_in(mail: MailStore, folder: Folder, flags: Collection[str]) -> frozenset[str]:
    """The flags in their spelling, for a new message of this folder. Raises as `settable_flags`, and MailError."""
    if all(flag.startswith("\\") for flag in flags):  # only keywords need the mailbox's spelling
        return settable_flags(flags, ())
    return settable_flags(flags, keywords(await mail.open_mailbox(folder)))


def other_flags(flags: Iterable[str], view: MailboxView, uids: UidSet) -> frozenset[str]:
    """All flags but these, in any spelling, that any of the messages has."""
    kept = {flag.lower() for flag in flags}
    return frozenset(
        flag
        for flag, holders in view.by_flag.items()
        if flag.lower() not in kept
        and any(next(holders.irange(low, high), None) is not None for low, high in uids.ranges)
    )


def _spelled(flags: Iterable[str], spellings: dict[str, str]) -> Iterator[str]:
    system = {flag.lower(): flag for flag in SYSTEM_FLAGS}
    new: dict[str, str] = {}
    for flag in flags:
        lower = flag.lower()
        if lower != RECENT.lower():
            yield system.get(lower) or spellings.get(lower) or new.setdefault(lower, flag)
