"""Words of Dovecot in a passwd-file's line that change there who may log in, or quotas, and do nothing here."""

from __future__ import annotations

import re

_MEANINGS = {
    "allow_real_nets": "the users may log in from everywhere",
    "nopassword": "the users need their passwords",
    "proxy": "the users' mail is here, or in the cluster that `cluster=` names",
    "proxy_maybe": "the users' mail is here, or in the cluster that `cluster=` names",
}
_QUOTA = "quotas are set by the words quota_storage and quota_messages"
_WORDS = re.compile(rf"(?:^|(?<=[:\s]))(userdb_quota_\w+|{'|'.join(_MEANINGS)})(?=[=:\s]|$)")


def foreign_words(fields: str) -> frozenset[str]:
    """Return the words among the fields after the hash that do nothing here."""
    return frozenset(_WORDS.findall(fields))


def meaning_of(word: str) -> str:
    """Return what holds here in spite of the word."""
    return _MEANINGS.get(word, _QUOTA)
