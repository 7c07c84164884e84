from __future__ import annotations

import pytest

from master_election.masters import Masters
from master_election.scopes import ScopePolicy, scope_of


def test_an_answer_counts_only_in_the_term_in_which_it_was_asked() -> None:
    masters = Masters("a")
    assert masters.learn("inbox", "b", asked_in=1)
    assert masters.master("inbox") == "b"
    masters.begin(2)
    assert masters.master("inbox") is None
    assert not masters.learn("inbox", "b", asked_in=1)
    assert masters.master("inbox") is None


def test_what_is_ours_ends_with_the_term() -> None:
    masters = Masters("a")
    masters.learn("inbox", "a", asked_in=1)
    assert masters.own == {"inbox"}
    assert masters.master("inbox") == "a"
    masters.begin(2)
    assert masters.own == set()


def test_the_least_recently_used_is_forgotten_but_never_what_is_ours() -> None:
    masters = Masters("a", cached_max=2)
    masters.learn("own", "a", asked_in=1)
    for scope in ("x", "y"):
        masters.learn(scope, "b", asked_in=1)
    assert masters.master("x") == "b"
    masters.learn("z", "b", asked_in=1)
    assert [masters.master(scope) for scope in ("own", "x", "y", "z")] == ["a", "b", None, "b"]


def test_a_master_that_is_none_is_asked_for_again() -> None:
    masters = Masters("a")
    masters.learn("inbox", "b", asked_in=1)
    masters.bounced("inbox")
    assert masters.master("inbox") is None


@pytest.mark.parametrize(
    ("policy", "user", "scope"),
    [
        (ScopePolicy.MAILBOX, "u@Example.org", "mailbox:0102"),
        (ScopePolicy.USER, "u@Example.org", "user:u@Example.org"),
        (ScopePolicy.DOMAIN, "u@Example.org", "domain:example.org"),
        (ScopePolicy.DOMAIN, "u", "domain:"),
        (ScopePolicy.GLOBAL, "u", "global"),
    ],
)
def test_scopes(policy: ScopePolicy, user: str, scope: str) -> None:
    assert scope_of(policy, user, b"\x01\x02") == scope
