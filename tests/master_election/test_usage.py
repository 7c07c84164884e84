from __future__ import annotations

from itertools import pairwise

import pytest

from master_election import scope_usage as rules
from master_election.scope_usage import ASK_AFTER, IN_A_ROW_S, JOIN_AFTER_S, QUIET_S, STAY_MAX_S, STAY_S, Usage

PART, USER = "mailbox:01 of user:ann", "user:ann"


def used(scope: str = "inbox", times: int = ASK_AFTER, at: float = 0.0) -> Usage:
    usage = Usage()
    for _ in range(times):
        usage.changed(scope, at)
    return usage


def test_node_asks_only_after_several_changes_in_a_row() -> None:
    assert not used(times=ASK_AFTER - 1).wants("inbox", 0)
    assert used().wants("inbox", 0)
    usage = Usage()
    for number in range(2 * ASK_AFTER):
        usage.changed("inbox", number * IN_A_ROW_S)
    assert not usage.wants("inbox", 2 * ASK_AFTER * IN_A_ROW_S)


def test_node_waits_twice_as_long_after_each_refusal() -> None:
    usage = used()
    now, waits = 0.0, []
    for _ in range(10):
        usage.refused("inbox", now)
        began = now
        while not usage.wants("inbox", now):
            now += 1.0
        waits.append(now - began)
    assert waits[:4] == [2, 4, 8, 16]
    assert waits[-1] == rules.RETRY_MAX_S


def test_scope_in_use_stays() -> None:
    usage = used(at=100.0)
    assert not usage.may_go("inbox", 100.0 + QUIET_S / 2)
    assert usage.may_go("inbox", 100.0 + QUIET_S)
    assert Usage().may_go("inbox", 0)


def test_scope_that_comes_back_soon_stays_longer_each_time() -> None:
    usage = Usage()
    now, stays = 0.0, []
    for _ in range(12):
        usage.came("inbox", now)
        began = now
        while not usage.may_go("inbox", now):
            now += 1.0
        stays.append(now - began)
    assert stays[:3] == [STAY_S, 2 * STAY_S, 4 * STAY_S]
    assert all(after == min(STAY_MAX_S, 2 * before) for before, after in pairwise(stays))
    usage.came("inbox", now + 5 * STAY_MAX_S)
    assert usage.may_go("inbox", now + 5 * STAY_MAX_S + STAY_S)


def test_usage_does_not_undo_an_operators_move_at_once() -> None:
    usage = used()
    usage.sent_away("inbox", 0)
    assert not usage.wants("inbox", STAY_MAX_S - 1)
    assert usage.wants("inbox", STAY_MAX_S)


def test_wider_scope_moves_as_a_whole_or_is_split() -> None:
    usage = used(PART, at=0)
    assert usage.offer(PART, USER, QUIET_S) == USER
    assert usage.offer("mailbox:02 of user:ann", USER, 0) == "mailbox:02 of user:ann"
    assert usage.offer(PART, USER, 0) is None
    usage.came(USER, 10.0)
    assert usage.offer(PART, USER, 10.0 + STAY_S / 2) == PART, "the wider scope would move too often"
    assert used().offer("inbox", "inbox", 0) is None


def test_part_joins_the_wider_scope_after_a_quiet_time() -> None:
    usage = used(PART, at=0)
    usage.came(PART, 5.0)
    assert not usage.may_join(PART, JOIN_AFTER_S)
    assert usage.may_join(PART, JOIN_AFTER_S + 5.0)


def test_number_of_remembered_scopes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "REMEMBERED_MAX", 2)
    usage = used("first")
    for scope in ("second", "third"):
        usage.changed(scope, 0)
    assert not usage.wants("first", 0)
    assert len(usage._scopes) == 2
