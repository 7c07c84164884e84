from __future__ import annotations

import pytest

from protocol.values import Dot, UidSet
from replicator.errors import FlagLimitError, InvalidFlagError, MailError
from replicator.flags import MAX_KEYWORDS, flags_in_use, known_flags, settable_flags
from replicator.view import MailboxView, Message


def test_flags_are_spelled_as_the_rfc_and_the_mailbox_spell_them() -> None:
    flags = settable_flags(["\\SEEN", "$junk", "New", "NEW", "\\Recent"], ["$Junk"])
    assert flags == {"\\Seen", "$Junk", "New"}
    assert known_flags(["\\sEEN", "\\Odd", "$JUNK"], ["$Junk"]) == {"\\Seen", "\\Odd", "$Junk"}


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["\\Odd"], InvalidFlagError),
        (["a(b"], InvalidFlagError),
        (["größer"], InvalidFlagError),
        ([""], InvalidFlagError),
        (["k" * 65], FlagLimitError),
        ([f"k{n}" for n in range(MAX_KEYWORDS + 1)], FlagLimitError),
        (["one", *(f"k{n}" for n in range(MAX_KEYWORDS))], FlagLimitError),
    ],
)
def test_flags_that_cannot_be_set(flags: list[str], error: type[MailError]) -> None:
    with pytest.raises(error):
        settable_flags(flags, [])


def test_a_mailbox_full_of_keywords_still_takes_those_that_it_has() -> None:
    full = [f"k{n}" for n in range(MAX_KEYWORDS + 5)]
    assert settable_flags(["K7", "\\Seen"], full) == {"k7", "\\Seen"}
    with pytest.raises(FlagLimitError):
        settable_flags(["another"], full)


def test_flags_in_use_by_some_messages() -> None:
    rows = [Message(uid, b"", 1, flags, 0, 0, b"", Dot("dc1.1", uid), 0)
            for uid, flags in ((1, frozenset({"a"})), (5, frozenset({"b", "c"})), (9, frozenset({"d"})))]  # fmt: skip
    view = MailboxView.build(mailbox_id=b"", user="u", uidvalidity=1, uidnext=10, highestmodseq=1, rows=rows)
    assert flags_in_use(view, UidSet.of([2, 3, 4, 5])) == {"b", "c"}
    assert flags_in_use(view, UidSet.of([1, 9])) == {"a", "d"}
