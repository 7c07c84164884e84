"""Entries that wait, and since when those of a mailbox have waited."""

from protocol.values import Dot
from replicator.store.db.memory.waiting_entries import WaitingEntries


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms


def test_age_is_that_of_the_mailbox_that_has_waited_longest() -> None:
    clock = Clock()
    first, second, third = (Dot("dc1.a", seq) for seq in (1, 2, 3))
    waiting = WaitingEntries({first: b"x"}, clock.now_ms)
    clock.ms = 1000
    waiting.add(second, b"y")
    waiting.add(third, b"x")
    waiting.add(third, b"x")
    clock.ms = 5000
    assert (len(waiting), waiting.chains, waiting.oldest_s) == (3, 2, 5.0)
    assert [*waiting.items()] == [(first, b"x"), (second, b"y"), (third, b"x")]
    waiting.discard(first)
    assert (waiting.chains, waiting.oldest_s) == (2, 5.0), "another entry of the mailbox still waits"
    waiting.discard(third)
    waiting.discard(third)
    assert (waiting.chains, waiting.oldest_s) == (1, 4.0)
    assert not waiting.is_in(b"x")
    assert waiting.is_in(b"y")
    waiting.discard(second)
    assert (len(waiting), waiting.chains, waiting.oldest_s) == (0, 0, 0.0)
    waiting.add(first, b"x")
    assert waiting.oldest_s == 0.0


def test_clock_that_goes_back_gives_no_negative_age() -> None:
    clock = Clock()
    clock.ms = 1000
    waiting = WaitingEntries({Dot("dc1.a", 1): b"x"}, clock.now_ms)
    clock.ms = 0
    assert waiting.oldest_s == 0.0
