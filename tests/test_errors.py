from __future__ import annotations

from replicator.errors import leaves


def test_errors_within_groups_are_found_in_order() -> None:
    first, second, third = ValueError("1"), OSError("2"), KeyError("3")
    inner = ExceptionGroup("inner", [second])
    assert leaves(ExceptionGroup("outer", [first, inner, third])) == [first, second, third]
