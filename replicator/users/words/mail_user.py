"""The word of a passwd-file's line that says whose mail its log-in name opens and receives: `user=NAME`.

It is Dovecot's own word, a field of its passdb: who logs in as the line's name is the user NAME. So a user can get
another log-in name, and the mail, which is stored under the user's name, stays where it is. It says so at once: NAME is
not looked up among the lines, and need not be the name of one. Lines may name one user, who then has several log-ins.
NAME has no `%`, which begins Dovecot's variables: `user=%n` in many lines would be one mailbox for many people.
"""

from __future__ import annotations

import re

from replicator.users.names import check_user_name, folded
from replicator.users.words.extra_field import with_word

NOBODY = ""
"""The user of a line whose word makes no sense: nobody may guess whose mail it opens."""

VARIABLE = "%"
"""Begins Dovecot's variables."""

_UNTIL = "until it is corrected, mail for this name waits and nobody can log in by it"
_WORDS = re.compile(r"(?:^|(?<=[:\s]))user=([^:\s]*)")
_REMOVED = re.compile(r"(?:(?<=:)|\s+)user=[^:\s]*(?=[:\s]|$)")


def mail_user(fields: str) -> str | None:
    """Return the user, folded, whom the fields after the hash name; None: they name none. Raises ValueError."""
    names: list[str] = _WORDS.findall(fields)
    if not names:
        return None
    if len(names) > 1:
        raise ValueError(f"user: expected the word once, with one user's name; {_UNTIL}")
    if VARIABLE in names[0]:
        raise ValueError(f"user: {names[0]!r} has a variable of Dovecot's, and these are not expanded here; {_UNTIL}")
    try:
        check_user_name(names[0])
    except ValueError as error:
        raise ValueError(f"user: {error}; {_UNTIL}") from None
    return folded(names[0])


def with_mail_user(line: bytes, user: str | None) -> bytes:
    """Return a line, without its end, that names this user; None: that names none, and so opens its own mail."""
    return with_word(line, _REMOVED, None if user is None else f"user={user}")
