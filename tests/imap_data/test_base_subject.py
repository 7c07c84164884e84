"""Base subjects (RFC 5256 section 2.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.ordering.base_subject import MAX_SUBJECT, BaseSubject, base_subject


@pytest.mark.parametrize(
    ("subject", "base", "is_reply"),
    [
        ("", "", False),
        ("Lunch", "Lunch", False),
        ("  Lunch \t today ", "Lunch today", False),
        ("Re: Lunch", "Lunch", True),
        ("RE : Fw: fwd:re[2]: Lunch", "Lunch", True),
        ("Refund: Lunch", "Refund: Lunch", False),
        ("Lunch (fwd) (FWD)  ", "Lunch", True),
        ("[list] Lunch", "Lunch", False),
        ("[list][x]  Re: [list] Lunch", "Lunch", True),
        ("Re: [list]", "[list]", True),
        ("[a] [b]", "[b]", False),
        ("[a] Re:", "", True),
        ("Re:", "", True),
        ("(fwd)", "", True),
        ("[fwd: Lunch]", "Lunch", True),
        ("Re: [FWD: [fwd: Re: [x] Lunch (fwd)]]", "Lunch", True),
        ("[list] [fwd: Re: Lunch]", "Lunch", True),
        ("[fwd: [a] b] c", "[fwd: [a] b] c", False),
        ("Lunch [list]", "Lunch [list]", False),
        ("[[a] Lunch", "[[a] Lunch", False),
        ("Re: re", "re", True),
    ],
)
def test_base_subject_lacks_what_replies_and_forwards_add(subject: str, base: str, *, is_reply: bool) -> None:
    assert base_subject(subject) == BaseSubject(base, is_reply)


PIECES = st.sampled_from(["re:", "Fwd :", "[x]", "[fwd:", "]", "(fwd)", " ", "\t", "a", "[", "re [x] :"])


@given(st.lists(PIECES, max_size=12).map("".join))
def test_base_subject_is_its_own_base_subject(subject: str) -> None:
    base = base_subject(subject)
    assert base_subject(base.text) == BaseSubject(base.text, is_reply=False)


@pytest.mark.parametrize("piece", ["[x]", "[fwd:", "re:", "(fwd)", "[", "re [x]", "(fwd) x"])
def test_long_subjects_have_a_limit(piece: str) -> None:
    assert len(base_subject(piece * 100_000).text) <= MAX_SUBJECT
