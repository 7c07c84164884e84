"""Since when scopes have their masters: what is remembered, and how much of it."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from master_election.scope_record import Event
from replicator.replication.mastership import tenures
from replicator.replication.mastership.tenures import Tenure, Tenures


async def test_tenure_begins_when_a_scope_gets_another_master(mock_clock: MockClock) -> None:
    known = Tenures()
    known.note("alice", Event.ROOT_NAMES_US)
    begun = mock_clock.current_time()
    mock_clock.jump(5)
    for event in (Event.PROMISED, Event.KEPT, Event.WANTED, Event.REFUSED):
        known.note("alice", event)
    assert known.get("alice") == Tenure(begun, Event.ROOT_NAMES_US)
    known.note("alice", Event.GIVEN)
    assert known.get("alice") == Tenure(begun + 5, Event.GIVEN)
    assert known.get("bob") is None


async def test_oldest_tenures_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenures, "REMEMBERED_MAX", 3)
    known = Tenures()
    for scope in "abcad":
        known.note(scope, Event.TAKEN)
    assert [scope for scope in "abcd" if known.get(scope)] == ["a", "c", "d"]


async def test_new_term_begins_without_tenures() -> None:
    known = Tenures()
    known.note("alice", Event.TAKEN)
    known.forget_all()
    assert known.get("alice") is None
