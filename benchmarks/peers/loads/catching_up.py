"""Times until the far server shows mails and changes that the near one has taken.

Sessions at the far server ask by NOOP, again and again, with a pause of a millisecond. That is the same for every
pair: not each tells an IDLE what its peer has sent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from benchmarks.clients.mails import MailTexts
from benchmarks.clients.wire import ImapClient, MeasurementError, connect_lmtp, deliver
from benchmarks.peers.loads.filling import FILLED_WITHIN_S, MAIL_BYTES, SHOWN_WITHIN_S, begin, fill
from benchmarks.peers.loads.mailboxes import Watch, wait_until
from benchmarks.peers.pairs.pair import Pair
from benchmarks.peers.rows import Row
from benchmarks.peers.sizes import Sizes
from benchmarks.report.figure import quantiles_ms

PAUSE_S = 0.001
CHANGED = 10
"""Messages that one command changes."""

PERIOD_S = 1.0
"""Some servers send changes once in this time, so samples begin at any moment of it."""


def lag(pair: Pair, sizes: Sizes, seeds: Iterator[int]) -> dict[Row, float]:
    """Measure from LMTP's OK at the near server to EXISTS at the far one, one mail at a time, while nothing else runs.

    The pair has mailboxes.
    """
    user, dice, samples = pair.users[0], random.Random(5), []
    texts = MailTexts(MAIL_BYTES, next(seeds))
    with connect_lmtp(pair.near.lmtp) as lmtp, pair.far.session(user) as session:
        session.command("SELECT INBOX")
        for _ in range(sizes.samples):
            time.sleep(dice.uniform(0, PERIOD_S))
            deliver(lmtp, [user], next(texts))
            samples.append(_until(session, _new_mails, 1))
    taken = quantiles_ms(samples)
    return {
        Row("OK to shown at the far server, one mail, p50", "ms"): taken["median_ms"],
        Row("OK to shown at the far server, one mail, p95", "ms"): taken["p95_ms"],
    }


def newcomer(pair: Pair, sizes: Sizes, seeds: Iterator[int]) -> dict[Row, float]:
    """Fill the near server, and measure from the start of an empty far one until that has all mails."""
    large, *others = pair.users
    first, half = begin(pair, seeds), sizes.messages // 2
    fill(pair, [large], half, seeds)
    fill(pair, others, sizes.messages - half - first, seeds)
    with Watch(pair.near, pair.users) as watch:
        watch.wait_for(sizes.messages, SHOWN_WITHIN_S)
    began = time.perf_counter()
    pair.start_far()
    wait_until(pair.is_filled, FILLED_WITHIN_S, "filling the new server")
    with Watch(pair.far, pair.users) as watch:  # not earlier: a look creates the mailbox at some servers
        watch.wait_for(sizes.messages, SHOWN_WITHIN_S)
    seconds = time.perf_counter() - began
    return {Row(f"a new far server gets {sizes.messages:,} mails", "s"): seconds}


def changes(pair: Pair, sizes: Sizes, seeds: Iterator[int]) -> dict[Row, float]:
    """Measure from STORE's OK at the near server until the far one tells all of its changes."""
    user, dice, samples = pair.users[0], random.Random(next(seeds)), []
    with pair.near.session(user) as near, pair.far.session(user) as far:
        near.command("SELECT INBOX")
        messages = _messages(far.command("SELECT INBOX"))
        numbers = dice.sample(range(1, messages + 1), CHANGED * (sizes.changes + 1))
        for at in range(0, len(numbers), CHANGED):
            time.sleep(dice.uniform(0, PERIOD_S))
            chosen = ",".join(str(number) for number in sorted(numbers[at : at + CHANGED]))
            near.command(f"STORE {chosen} +FLAGS.SILENT (\\Flagged)")
            samples.append(_until(far, _flagged, CHANGED))
    taken = quantiles_ms(samples[1:])  # the first one finds out what has changed since the beginning
    what = f"OK to shown at the far server, {CHANGED} flags among {messages:,} messages, p50"
    return {Row(what, "ms"): taken["median_ms"]}


def _until(session: ImapClient, count: Callable[[list[bytes]], int], wanted: int) -> float:
    """Return the seconds until NOOPs have told of `wanted` things in all. Raises MeasurementError."""
    began, told = time.perf_counter(), 0
    while True:
        told += count(session.command("NOOP"))
        spent = time.perf_counter() - began
        if told >= wanted:
            return spent
        if spent > SHOWN_WITHIN_S:
            raise MeasurementError(f"the far server tells {told} changes of {wanted} after {spent:.0f} s")
        time.sleep(PAUSE_S)


def _new_mails(lines: list[bytes]) -> int:
    return sum(line.endswith(b" EXISTS") for line in lines)


def _flagged(lines: list[bytes]) -> int:
    return sum(b" FETCH (" in line and b"\\Flagged" in line for line in lines)


def _messages(lines: list[bytes]) -> int:
    return next(int(line.split()[1]) for line in lines if line.endswith(b" EXISTS"))
