import random

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import Dot, Stamp
from resync import row as rows
from resync.row import Row

ROW = Row(1, Dot("dc1.a", 1), 0, bytes(16), Dot("dc1.a", 1), 1, {"\\Seen": (5, "dc1", True)}, 0, 4, bytes(32))
FINGERPRINTS = st.lists(st.integers(0, 2**128 - 1), max_size=9)


@given(FINGERPRINTS, st.randoms(use_true_random=False))
def test_sum_does_not_depend_on_the_order(members: list[int], rng: random.Random) -> None:
    shuffled = members.copy()
    rng.shuffle(shuffled)
    one_by_one = 0
    for member in shuffled:
        one_by_one = rows.add(one_by_one, member)
    assert one_by_one == rows.add(0, *members)


@given(FINGERPRINTS, FINGERPRINTS)
def test_removal_undoes_addition(stay: list[int], go: list[int]) -> None:
    assert rows.remove(rows.add(0, *stay, *go), *go) == rows.add(0, *stay)
    assert len(rows.to_bytes(rows.remove(0, *stay))) == 16


@pytest.mark.parametrize(
    "other",
    [
        ROW._replace(uid=2),
        ROW._replace(dot=Dot("dc1.a", 2)),
        ROW._replace(change=1),
        ROW._replace(guid=bytes(15) + b"\1"),
        ROW._replace(claim=Dot("dc2.a", 1)),
        ROW._replace(modseq=2),
        ROW._replace(flags={}),
        ROW._replace(flags={"\\Seen": (6, "dc1", True)}),
        ROW._replace(flags={"\\Seen": (5, "dc2", True)}),
        ROW._replace(flags={"\\Seen": (5, "dc1", False)}),
        ROW._replace(received_ms=1),
        ROW._replace(size_bytes=5),
        ROW._replace(content_hash=bytes(31) + b"\1"),
    ],
)
def test_fingerprint_depends_on_every_field(other: Row) -> None:
    assert other.fingerprint() != ROW.fingerprint()


def test_fingerprint_ignores_the_order_of_flags_and_storage() -> None:
    flags = {"a": (1, "dc1", True), "b": (2, "dc2", False)}
    one = ROW._replace(flags=flags)
    backwards = ROW._replace(flags=dict(reversed(flags.items())))
    stored = ROW._replace(flags=msgpack.unpackb(msgpack.packb(flags), use_list=False))
    assert one.fingerprint() == backwards.fingerprint() == stored.fingerprint()


def test_cleared_flag_keeps_its_stamp_and_is_invisible() -> None:
    states = rows.set_flags(ROW.flags, ["\\Seen"], Stamp(9, "dc2"), value=False)
    assert states == {"\\Seen": (9, "dc2", False)}
    assert ROW._replace(flags=states).visible_flags() == frozenset()
    assert rows.set_flags(states, ["a", "\\Seen"], Stamp(10, "dc1"), value=True) == {
        "\\Seen": (10, "dc1", True),
        "a": (10, "dc1", True),
    }
    assert ROW.flags == {"\\Seen": (5, "dc1", True)}, "states are never changed in place"
