from __future__ import annotations

import pytest

from protocol.values import Dot, UidSet
from replicator.errors import FlagLimitError, InvalidFlagError, MailError
from replicator.mail.flags import (
    MAX_KEYWORDS,
    kept_flags,
    keywords,
    other_flags,
    removable_flags,
    settable_flags,
    shown_once,
)
from replicator.mail.view import MailboxView, Message


def test_flags_get_the_spelling_of_the_rfc_and_the_mailbox() -> None:
    flags = settable_flags(["\\SEEN", "$junk", "New", "NEW", "\\Recent"], ["$Junk"])
    assert flags == {"\\Seen", "$Junk", "New"}
    view = view_of({"$Junk"})
    assert removable_flags(["\\sEEN", "\\Odd", "$JUNK", "\\Recent", "New"], view) == {"\\Seen", "\\Odd", "$Junk", "New"}


def view_of(*flags_of: set[str]) -> MailboxView:
    """Return a mailbox of messages 1, 2, ... with these flags."""
    rows = [Message(uid, b"", 1, frozenset(flags), 0, 0, b"", Dot("dc1.1", uid), 0)
            for uid, flags in enumerate(flags_of, 1)]  # fmt: skip
    return MailboxView.build(mailbox_id=b"", user="u", uidvalidity=1, uidnext=100, highestmodseq=1, rows=rows)


def test_of_several_spellings_one_is_shown_and_all_are_removed() -> None:
    view = view_of({"work", "\\Seen"}, {"WORK", "Work", "other"})
    assert keywords(view.by_flag) == ["WORK", "other"]
    assert shown_once({"work", "\\Seen", "Work"}) == ["Work", "\\Seen"]
    assert settable_flags(["wORK"], keywords(view.by_flag)) == {"WORK"}
    assert removable_flags(["wORK"], view) == {"WORK", "Work", "work"}
    assert other_flags(["WORK"], view, UidSet.of([1, 2])) == {"\\Seen", "other"}


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
def test_invalid_or_too_many_flags_are_refused(flags: list[str], error: type[MailError]) -> None:
    with pytest.raises(error):
        settable_flags(flags, [])


def test_mailbox_full_of_keywords_accepts_those_that_it_has() -> None:
    full = [f"k{n}" for n in range(MAX_KEYWORDS + 5)]
    assert settable_flags(["K7", "\\Seen"], full) == {"k7", "\\Seen"}
    with pytest.raises(FlagLimitError):
        settable_flags(["another"], full)


def test_what_a_mailbox_cannot_have_is_left_out() -> None:
    full = [f"k{n}" for n in range(MAX_KEYWORDS - 1)]
    assert kept_flags(["K7", "\\seen", "b", "c", "a(b", "\\Odd", "k" * 65, "\\Recent"], full) == {"k7", "\\Seen", "b"}
    assert kept_flags(["K7", "new"], [*full, "x", "y"]) == {"k7"}


def test_other_flags_are_those_of_the_named_messages() -> None:
    view = view_of({"a"}, set(), set(), set(), {"b", "c"}, set(), {"d"})
    assert other_flags((), view, UidSet.of([2, 3, 4, 5])) == {"b", "c"}
    assert other_flags((), view, UidSet.of([1, 7])) == {"a", "d"}
