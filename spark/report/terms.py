"""The terms of an audit, explained in a line each for readers who meet them for the first time.

Keys are those of `spark.report.summary.Summary`, which `spark.comparison.mailboxes` and `spark.comparison.messages`
define.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Term(NamedTuple):
    """The meaning of a term, and its effect on mail clients."""

    meaning: str
    clients: str


RELATIONS: Final[Mapping[str, Term]] = {
    "equal": Term("All nodes show the same, including every flag.", "They notice nothing."),
    "behind": Term(
        "One node has seen everything that the others have; some others still lack the newest changes and will"
        " catch up.",
        "They do not see the newest mail and changes at a node that is behind.",
    ),
    "forked": Term(
        "At least two nodes have each seen changes that the other has not, as after a network cut. A merge of"
        " their branches makes them equal.",
        "Each node shows them its own branch until then.",
    ),
    "damaged": Term(
        "What nodes show contradicts what they say they have seen: no order of changes leads there. The audit"
        " believes none of it, and `replicator apply` leaves it alone.",
        "Mail may be missing or wrong at one of the nodes.",
    ),
}

KINDS: Final[Mapping[str, Term]] = {
    "missing": Term(
        "A node does not show the message and has never seen it. Repair adds it there.",
        "They do not see it at that node yet.",
    ),
    "expunged": Term(
        "One node has seen the message expunged, but another still shows it. Repair removes it everywhere.",
        "They see it at the other node until then.",
    ),
    "uid_conflict": Term(
        "The message cannot keep its UID, the number by which clients know it, because nodes gave out UIDs"
        " while they were disconnected. Repair gives it a new one.",
        "They see it disappear and come back, and fetch it again.",
    ),
    "flags_differ": Term(
        "Only one node has seen a change of a flag such as seen, answered or deleted. The last change of each"
        " flag counts.",
        "The message may look unread at some node, for example.",
    ),
    "damage": Term(
        "One message has different bodies, sizes or dates, which no change can cause. `replicator check"
        " --repair` examines it.",
        "They may see another body.",
    ),
    "only_modseq": Term(
        "Only the number of the last change (MODSEQ) differs, or the entry that gave the UID.",
        "They notice nothing.",
    ),
}

UNKNOWN: Final = Term("A later version of this program explains this.", "Not known to this version.")
