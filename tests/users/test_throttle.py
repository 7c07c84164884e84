from replicator.users.throttle import DELAY_MAX_S, ENTRIES_MAX, LEAK_S, FailureTable


def test_wait_doubles_after_the_free_failures() -> None:
    table = FailureTable(free=2)
    waits = []
    for _ in range(9):
        table.failed("a", 100.0)
        waits.append(max(0.0, table.ready_at("a") - 100.0))
    assert waits == [0, 0, 0.5, 1, 2, 4, 8, 8, 8]
    assert table.ready_at("b") == 0


def test_failures_expire() -> None:
    table = FailureTable(free=1)
    for _ in range(3):
        table.failed("a", 0.0)
    assert table.ready_at("a") == 1.0
    table.failed("a", 2 * LEAK_S)
    assert table.ready_at("a") == 2 * LEAK_S + 0.5
    table.failed("a", 1000 * LEAK_S)
    assert table.ready_at("a") == 0


def test_success_clears_failures() -> None:
    table = FailureTable(free=0)
    table.failed("a", 0.0)
    table.forget("a")
    table.forget("a")
    assert table.ready_at("a") == 0


def test_table_is_bounded_and_keeps_the_latest() -> None:
    table = FailureTable(free=0)
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
    table = FailureTable(free=0)
    for _ in range(20_000):
        table.failed("a", 5.0)
    assert table.ready_at("a") == 5.0 + DELAY_MAX_S
