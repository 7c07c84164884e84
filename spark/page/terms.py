"""The terms of an audit, explained in a line each for readers who meet them for the first time.

Keys are those of `spark.summary.Summary`, which `spark.mailboxes` and `spark.messages` define.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Term(NamedTuple):
    """The meaning of a term, and its effect on mail clients."""

    meaning: str
    clients: str


RELATIONS: Final[Mapping[str, Term]] = {
    "equal": Term("All nodes show the same, down to the last flag.", "Nothing to notice."),
    "behind": Term(
        "One node has seen all that the others have; some still lack the newest of it. Those catch up.",
        "At a node behind, the newest mail and changes are not there yet.",
    ),
    "forked": Term(
        "Several nodes have each seen something that another one has not, as after a cut between them. Their branches "
        "are to be joined.",
        "Each node shows its own branch until then.",
    ),
    "damaged": Term(
        "What nodes show contradicts what they say they have seen; no order of changes leads there. Nothing of it is "
        "believed, and `replicator apply` leaves it alone.",
        "Mail may be missing, or shown wrongly, at one of the nodes.",
    ),
}

KINDS: Final[Mapping[str, Term]] = {
    "missing": Term(
        "A node does not show the message and has never seen it come. Making equal brings it there.",
        "They do not see it at that node yet.",
    ),
    "expunged": Term(
        "A node has seen it removed for good, another still shows it. Making equal removes it everywhere.",
        "They see it at the other node until then.",
    ),
    "uid_conflict": Term(
        "It has a UID, the number by which clients know it, that it cannot keep: nodes gave numbers while they were "
        "apart. Making equal gives it a new one.",
        "They see it go and come again, and fetch it once more.",
    ),
    "flags_differ": Term(
        "Seen, answered, deleted or another flag was changed at one node only. Of each flag the last change counts.",
        "At some node it looks unread, for example.",
    ),
    "damage": Term(
        "One message, but texts, sizes or dates that differ, which no change can do. `replicator check --repair` "
        "looks into it.",
        "They may be shown another text.",
    ),
    "only_modseq": Term(
        "Only the number of the last change (MODSEQ) differs, or who gave the UID.",
        "They notice nothing.",
    ),
}

UNKNOWN: Final = Term("A later version of this program says what this is.", "Not known here.")
