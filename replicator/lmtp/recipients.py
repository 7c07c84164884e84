"""Whose mailbox an address means.

The whole address is tried first, then its local part alone, so that `alice@example.org` reaches a user of that name
and else the user `alice`. Each is tried as written, then in small letters, then without a `+detail` (RFC 5233): mail
for `alice+lists@example.org` goes to alice's INBOX. A user who is really called `alice+lists` comes before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from replicator.lmtp.syntax import Address

DETAIL = "+"


def find_user(address: Address, exists: Callable[[str], bool]) -> str | None:
    """The user's name as the directory knows it, or None."""
    return next((user for user in _candidates(address) if exists(user)), None)


def _candidates(address: Address) -> Iterator[str]:
    local = address.name
    base, detail, _ = local.partition(DETAIL)
    # `+detail` alone names nobody.
    locals_ = (local, base) if detail and base else (local,)
    if address.domain:
        for part in locals_:
            yield f"{part}@{address.domain}"
            yield f"{part}@{address.domain}".lower()
    for part in locals_:
        yield part
        yield part.lower()
