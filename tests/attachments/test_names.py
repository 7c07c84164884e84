from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.store.attachments import names
from replicator.store.attachments.names import SHA256, Algorithm, Algorithms

OWNER = "cf1e8c14e54505f60aa10ceb8d5d8ab3"
SHA512 = Algorithm("x", 64, hashlib.sha512)
BOTH = Algorithms((SHA256, SHA512))


def test_h_name_is_the_hash_in_levels() -> None:
    empty = hashlib.sha256().digest()
    assert Algorithms().h_name(empty) == "e3/b0/c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_s_name_follows_from_the_holder() -> None:
    holder = names.new_holder(OWNER, 43981)
    assert holder == f"s{OWNER}i43981"
    assert names.s_name(holder) == f"cd/ab/s{OWNER}i43981"
    assert names.owner_of(holder) == OWNER


@pytest.mark.parametrize("start", [0, 1, 43981, 1 << 24])
def test_consecutive_s_names_spread_over_all_directories(start: int) -> None:
    counted = Counter(names.parent(names.s_name(names.new_holder(OWNER, start + number))) for number in range(65536))
    assert len(counted) == 65536
    first = [names.s_name(names.new_holder(OWNER, start + number))[:2] for number in range(256)]
    assert len(set(first)) == 256


@given(st.binary(min_size=32, max_size=32) | st.binary(min_size=64, max_size=64))
def test_hash_is_read_back_from_the_h_name(content_hash: bytes) -> None:
    name = BOTH.h_name(content_hash)
    assert BOTH.hash_of(name) == content_hash
    assert name == name.lower()


@given(st.integers(0, 1 << 40), st.binary(min_size=16, max_size=16))
def test_no_s_name_is_an_h_name(counter: int, owner: bytes) -> None:
    name = names.s_name(names.new_holder(owner.hex(), counter))
    assert BOTH.hash_of(name) is None
    assert names.owner_of(name.rpartition("/")[2]) == owner.hex()


def test_new_algorithm_does_not_rename_old_attachments() -> None:
    old, new = hashlib.sha256(b"text").digest(), hashlib.sha512(b"text").digest()
    assert BOTH.h_name(old) == Algorithms().h_name(old)
    assert BOTH.h_name(new) == f"{new.hex()[:2]}/{new.hex()[2:4]}/x{new.hex()[4:]}"
    assert BOTH.current is SHA512
    assert Algorithms().hash_of(BOTH.h_name(new)) is None  # an older program ignores unknown names


@pytest.mark.parametrize("prefix", ["s", "i", "a", "0", "X", "xx", "/"])
def test_ambiguous_algorithm_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        Algorithm(prefix, 64, hashlib.sha512)


@pytest.mark.parametrize("other", [Algorithm("", 64, hashlib.sha512), Algorithm("x", 32, hashlib.sha3_256)])
def test_algorithms_with_one_prefix_or_size_are_refused(other: Algorithm) -> None:
    with pytest.raises(ValueError, match="differ"):
        Algorithms((SHA256, other))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "owners",
        "e3/b0",
        "e3/b0/c4",
        "E3/b0/" + "0" * 60,
        "e3/b0/" + "G" * 60,
        "e3/b0/" + "0" * 61,
        "../b0/" + "0" * 60,
    ],
)
def test_other_names_are_no_h_names(name: str) -> None:
    assert BOTH.hash_of(name) is None


@pytest.mark.parametrize(
    "leaf",
    ["", "s", f"s{OWNER}", f"s{OWNER}i", f"s{OWNER}i01", f"S{OWNER}i1", f"s{OWNER[1:]}i1", f"s{OWNER}i1x", "content"],
)
def test_other_names_are_no_holders(leaf: str) -> None:
    assert names.owner_of(leaf) is None
    assert not names.is_ours(f"content.{leaf}")
    with pytest.raises(ValueError, match="not the name of a holder"):
        names.s_name(leaf)


def test_hash_of_an_unknown_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"digests of 20 bytes; the sizes are \[32, 64\]"):
        BOTH.h_name(bytes(20))


def test_owner_files() -> None:
    assert names.owner_file("dc-1", OWNER) == f"owners/dc-1.{OWNER}"
    assert names.parse_owner_file(f"dc-1.{OWNER}") == ("dc-1", OWNER)
    assert names.parse_owner_file(f"dc-1.{OWNER}.bak") is None
