from __future__ import annotations

import pytest

from protocol.values import UID_MAX
from replicator.mail.lookup import parse_uids


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("7", ((7, 7),)),
        ("7,30:39", ((7, 7), (30, 39))),
        ("39:30,7,31", ((7, 7), (30, 39))),
        ("100:*", ((100, UID_MAX),)),
        (f"1:{UID_MAX}", ((1, UID_MAX),)),
    ],
)
def test_sets_of_uids_are_read(text: str, ranges: tuple[tuple[int, int], ...]) -> None:
    assert parse_uids(text).ranges == ranges


@pytest.mark.parametrize(
    "text",
    ["", ",", "1,", "*", "*:5", "0", "0:3", "-1", "1:2:3", "seven", "\u0661", " 1", "1 ", "4294967296", "9" * 99],
)
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="UIDs"):
        parse_uids(text)
