from replicator.users.attempts.throttle import (
    DELAY_MAX_S,
    ENTRIES_MAX,
    EXCESS_MAX,
    FREE_FAILURES_PAIR,
    KNOWN_ADDRESSES_PER_USER,
    KNOWN_USERS_MAX,
    LEAK_S,
    FailureTable,
    KnownAddresses,
    Throttle,
)


def table_with(free: int) -> FailureTable[str]:
    return FailureTable(free)


def test_wait_doubles_after_the_free_failures() -> None:
    table = table_with(free=2)
    waits = []
    for _ in range(9):
        table.failed("a", 100.0)
        waits.append(max(0.0, table.ready_at("a") - 100.0))
    assert waits == [0, 0, 0.5, 1, 2, 4, 8, 8, 8]
    assert table.ready_at("b") == 0


def test_failures_expire() -> None:
    table = table_with(free=1)
    for _ in range(3):
        table.failed("a", 0.0)
    assert table.ready_at("a") == 1.0
    table.failed("a", 2 * LEAK_S)
    assert table.ready_at("a") == 2 * LEAK_S + 0.5
    table.failed("a", 1000 * LEAK_S)
    assert table.ready_at("a") == 0


def test_success_clears_failures() -> None:
    table = table_with(free=0)
    table.failed("a", 0.0)
    table.forget("a")
    table.forget("a")
    assert table.ready_at("a") == 0


def test_table_is_bounded_and_keeps_the_latest() -> None:
    table = table_with(free=0)
    table.failed("old", 0.0)
    table.failed("again", 0.0)
    for number in range(ENTRIES_MAX - 1):
        table.failed(str(number), 1.0)
        if number == 10:
            table.failed("again", 1.0)
    assert len(table) == ENTRIES_MAX
    assert table.ready_at("old") == 0
    assert table.ready_at("again") > 0


def test_many_failures_do_not_overflow() -> None:
    table = table_with(free=0)
    for _ in range(20_000):
        table.failed("a", 5.0)
    assert table.ready_at("a") == 5.0 + DELAY_MAX_S


def test_long_guessing_is_forgotten_within_minutes() -> None:
    table = table_with(free=3)
    for _ in range(500):
        table.failed("a", 0.0)
    assert table.failed("a", (3 + EXCESS_MAX) * LEAK_S)


def test_single_failures_of_many_keys_drop_none_that_is_delayed() -> None:
    table = table_with(free=1)
    table.failed("a", 0.0)
    table.failed("a", 0.0)
    for number in range(3 * ENTRIES_MAX):
        table.failed(str(number), 1.0)
    assert len(table) == ENTRIES_MAX + 1
    assert table.ready_at("a") > 0


def test_long_names_take_little_memory() -> None:
    throttle = Throttle()
    for _ in range(FREE_FAILURES_PAIR + 1):
        throttle.failed("x" * 8000, "192.0.2.1", 0.0)
    assert throttle.ready_at("x" * 8000, "192.0.2.1") > 0
    assert max(len(user) for user, _ in throttle._pairs._delayed) < 300


def test_logins_from_many_addresses_drop_nobody_elses() -> None:
    known = KnownAddresses()
    known.add("alice", "home")
    for number in range(100_000):
        known.add("mallory", str(number))
    assert len(known) == 1 + KNOWN_ADDRESSES_PER_USER
    assert known.has_pair("alice", "home")
    assert known.has_pair("mallory", "99999")
    assert not known.has_pair("mallory", "0")
    assert not known.has("0")


def test_users_who_logged_in_longest_ago_are_dropped_first() -> None:
    known = KnownAddresses()
    known.add("alice", "office")
    known.add("bob", "office")
    for number in range(KNOWN_USERS_MAX - 1):
        known.add(str(number), "home")
        if number == 10:
            known.add("alice", "office")
    assert len(known) == KNOWN_USERS_MAX
    assert known.has_pair("alice", "office")
    assert not known.has_pair("bob", "office")
    assert known.has("office")
