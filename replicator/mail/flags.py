r"""Spelling, validity and limits of flags in a mailbox, common to all doors.

Flags are compared without regard to case (RFC 9051 section 2.3.2): system flags are spelled as in the RFC, a keyword as
the mailbox already spells it. If two nodes introduce different spellings of a keyword at once, the mailbox keeps both,
and a client is shown one. Only the server sets `\Recent`; it is ignored in clients' commands.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from protocol.values import UidSet
from replicator.errors import FlagLimitError, InvalidFlagError
from replicator.mail.mailstore import Folder, MailStore
from replicator.mail.view import MailboxView

RECENT = "\\Recent"

SYSTEM_FLAGS = ("\\Answered", "\\Flagged", "\\Deleted", "\\Seen", "\\Draft")
r"""System flags of RFC 3501 section 2.3.2, without `\Recent`, which no client sets."""

MAX_KEYWORDS = 100  # in a mailbox: each is announced at every SELECT and indexed in every view of the mailbox
MAX_KEYWORD_BYTES = 64  # clients' own keywords have about 20; each is repeated in every row of a message that has it

# RFC 9051 section 9: atom = 1*ATOM-CHAR, any CHAR except "(" / ")" / "{" / SP / CTL / "%" / "*" / DQUOTE / "\" / "]"
_KEYWORD = re.compile(r"[!#$&'+,\-./0-9:;<=>?@A-Z\[^_`a-z|}~]+")


def is_keyword(text: str) -> bool:
    """Return True for a text that can be a keyword."""
    return _KEYWORD.fullmatch(text) is not None and len(text) <= MAX_KEYWORD_BYTES


def shown_once(flags: Iterable[str]) -> list[str]:
    """Return each flag in one spelling only: the first in sort order."""
    return sorted({flag.lower(): flag for flag in sorted(flags, reverse=True)}.values())


def keywords(flags: Iterable[str]) -> list[str]:
    """Return the keywords among these flags, sorted by name, each in one spelling."""
    return shown_once(flag for flag in flags if not flag.startswith("\\"))


def removable_flags(flags: Iterable[str], view: MailboxView) -> frozenset[str]:
    r"""Return the flags in every spelling that the mailbox has, without `\Recent`."""
    spellings: dict[str, list[str]] = {}
    for flag in view.by_flag:
        spellings.setdefault(flag.lower(), []).append(flag)
    return frozenset(one for flag in _spelled(flags, {}) for one in spellings.get(flag.lower(), [flag]))


def settable_flags(flags: Iterable[str], in_use: Iterable[str]) -> frozenset[str]:
    """Return the flags as a mailbox with the keywords `in_use` spells them. Raises InvalidFlagError, FlagLimitError."""
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


def kept_flags(flags: Iterable[str], in_use: Iterable[str]) -> frozenset[str]:
    """Return those of the flags that a mailbox with the keywords `in_use` can have, as it spells them."""
    spellings = {keyword.lower(): keyword for keyword in in_use}
    room = MAX_KEYWORDS - len(spellings)
    kept = set()
    for flag in sorted(frozenset(_spelled(flags, spellings))):
        if flag not in SYSTEM_FLAGS and flag.lower() not in spellings:
            if room <= 0 or not is_keyword(flag):
                continue
            room -= 1
        kept.add(flag)
    return frozenset(kept)


async def settable_in(mail: MailStore, folder: Folder, flags: Collection[str]) -> frozenset[str]:
    """Return the flags as this folder spells them, for a new message. Raises as `settable_flags`, and MailError."""
    if all(flag.startswith("\\") for flag in flags):  # only keywords need the mailbox's spelling
        return settable_flags(flags, ())
    return settable_flags(flags, keywords((await mail.open_mailbox(folder)).by_flag))


def other_flags(flags: Iterable[str], view: MailboxView, uids: UidSet) -> frozenset[str]:
    """Return all flags, in any spelling, that any of the messages has and that are not among `flags`."""
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
