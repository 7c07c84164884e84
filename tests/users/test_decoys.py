"""Decoys: what answers log-ins of users who do not exist, at whichever node, as those of most others."""

from __future__ import annotations

import pytest

from replicator.users.decoys import Decoys
from replicator.users.passwd_file.table import UserTable
from replicator.users.schemes import PasswordHash, parse_hash

KEY = b"key"
CHEAP, DEAR = (f"{{BLF-CRYPT}}$2y${cost}${'a' * 21}.{'b' * 31}" for cost in ("05", "16"))
SHA512 = "{CRYPT}$6$rounds=5000$salt$" + "a" * 86
DECOY_SCHEME = "ARGON2ID"


def scram(iterations: int) -> PasswordHash:
    return parse_hash(f"{{SCRAM-SHA-256}}{iterations},c2FsdHNhbHRzYWx0c2E=,{'A' * 43}=,{'A' * 43}=")


def decoys_of(*hashes: PasswordHash | None) -> Decoys:
    return Decoys(UserTable({f"user{number}": stored for number, stored in enumerate(hashes)}), KEY)


def test_the_check_for_nobody_takes_as_long_as_for_most_users_and_not_as_for_the_first() -> None:
    dear, cheap, sha512 = map(parse_hash, (DEAR, CHEAP, SHA512))
    assert decoys_of(dear, cheap, cheap).hash_to_check() == cheap
    assert decoys_of(dear, parse_hash(f"{{CRYPT}}{DEAR[11:]}"), cheap).hash_to_check() == dear
    assert decoys_of(parse_hash(CHEAP[11:]), sha512, sha512).hash_to_check() == sha512


def test_the_check_for_nobody_follows_users_who_come_and_go() -> None:
    dear, cheap = map(parse_hash, (DEAR, CHEAP))
    decoys = decoys_of(dear, None)
    decoys.add("ann", cheap)
    decoys.remove("user0", dear)
    assert decoys.hash_to_check() == cheap
    decoys.remove("ann", cheap)
    assert decoys.hash_to_check().scheme == DECOY_SCHEME


def test_keys_of_nobody_are_alike_at_nodes_to_which_users_came_in_another_order() -> None:
    weak, strong = scram(4096), scram(9999)
    one, other, patched = decoys_of(weak, strong), decoys_of(strong, weak), decoys_of(weak, None)
    patched.add("ann", strong)
    assert {decoys.keys_of("nobody").iterations for decoys in (one, other, patched)} == {9999}


@pytest.mark.parametrize(
    ("text", "effort"),
    [
        (CHEAP, "$2y$05"),
        (CHEAP[11:], "$2y$05"),
        (SHA512, "$6$rounds=5000"),
        ("{SHA512-CRYPT}$6$salt$" + "a" * 86, "$6$"),
        (f"{{ARGON2ID}}$argon2id$v=19$m=19456,t=2,p=1${'a' * 22}${'b' * 43}", "$argon2id$v=19$m=19456,t=2,p=1"),
        ("{PLAIN}$2y$05", "PLAIN"),
    ],
)
def test_effort_is_what_stands_before_the_salt(text: str, effort: str) -> None:
    assert parse_hash(text).effort == effort
    assert scram(4096).effort == "SCRAM-SHA-256 4096"
