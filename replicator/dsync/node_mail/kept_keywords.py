"""The keywords of one folder during a sync: a Dovecot may bring more than a folder here can have."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from replicator.mail.flags import MAX_KEYWORD_BYTES, kept_flags
from replicator.mail.mailstore import Folder
from replicator.runtime.logs.fields import LogFields

log = logging.getLogger(__name__)

SHOWN_MAX = 5
"""Keywords that are named in the log."""


class KeptKeywords:
    """The keywords that a folder has, and how many of the peer's were left out."""

    def __init__(self, in_use: Iterable[str]) -> None:
        self._in_use = {*in_use}
        self._left_out = 0
        self._shown = set[str]()

    def of(self, flags: frozenset[str]) -> frozenset[str]:
        """Return those of the flags that a mail here can have, as the folder spells them."""
        kept = kept_flags(flags, self._in_use)
        self._in_use |= {flag for flag in kept if not flag.startswith("\\")}
        names = {flag.lower() for flag in kept}
        left_out = [flag for flag in flags if flag.lower() not in names]
        self._left_out += len(left_out)
        self._shown |= {flag[:MAX_KEYWORD_BYTES] for flag in left_out[: SHOWN_MAX - len(self._shown)]}
        return kept

    def tell(self, folder: Folder) -> None:
        """Log what was left out, if anything was: one line for each sync of a folder."""
        if self._left_out:
            fields = {"user": folder.user, "folder": folder.name, "keywords": " ".join(sorted(self._shown))}
            log.warning("keywords of a Dovecot's mails were left out %d times: %s", self._left_out, LogFields(fields))
