"""The cluster that has a user's mail, at a site of several clusters whose nodes share one passwd-file.

The user's line names it by the word `cluster=NAME`, in any field after the hash, like the words that set a quota. At a
site of several clusters each line must have it: nodes of two clusters that read the same file would each take a user
without it for theirs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

NOWHERE = ""
"""The cluster of a user whose line names none, or one that makes no sense: nobody may guess where the mail is."""


class Site(NamedTuple):
    """A node's own cluster, and whether the site has others."""

    own: str
    has_others: bool = False

    def home_of(self, named: str | None) -> str:
        """Return the cluster of a user whose line names this one; None: it names none."""
        return named if named is not None else NOWHERE if self.has_others else self.own


_WORD = re.compile(r"(?:^|(?<=[:\s]))cluster=([^:\s]*)")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def home_cluster(fields: str) -> str | None:
    """Return the cluster that the fields after the hash name, if they name one. Raises ValueError."""
    names: set[str] = set(_WORD.findall(fields))
    if not names:
        return None
    name = names.pop()
    if names or not _NAME.fullmatch(name):
        raise ValueError(
            "cluster: expected one name of 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'; until it is corrected, no node"
            " has this user's mail"
        )
    return name
