from hypothesis import given
from hypothesis import strategies as st

from replicator.users.names import candidates, folded


def test_most_specific_reading_of_a_name_comes_first() -> None:
    assert list(candidates("Al+x@Ex.org")) == ["al+x@ex.org", "al@ex.org", "al+x", "al"]
    assert list(candidates("Al+x+y")) == ["al+x+y", "al"]
    assert list(candidates("alice@example.org")) == ["alice@example.org", "alice"]
    assert list(candidates("ÄLICE")) == ["älice"]
    assert list(candidates("a@b@c")) == ["a@b@c", "a@b"]


def test_name_of_only_a_detail_has_no_other_reading() -> None:
    assert list(candidates("+x@ex.org")) == ["+x@ex.org", "+x"]
    assert list(candidates("+x")) == ["+x"]


@given(st.text(max_size=20))
def test_case_is_ignored(name: str) -> None:
    assert list(candidates(name)) == list(candidates(folded(name)))
    assert next(candidates(name)) == folded(name)
