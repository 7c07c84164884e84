"""Mails of 4 KiB, brought to the near server by the load generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.clients.load import Load, LoadResult
from benchmarks.clusters.apart import run_apart
from benchmarks.peers.pairs.pair import Pair

MAIL_BYTES = 4096
SHOWN_WITHIN_S = 600.0  # two Dovecots that wait for each other over one mailbox try again after five minutes
FILLED_WITHIN_S = 900.0
LANES = 8
"""Connections that fill mailboxes."""


def deliver(pair: Pair, users: Sequence[str], connections: int, *, mails: int, seconds: float, seed: int) -> LoadResult:
    """Deliver mails to the users in turn.

    Each load needs a seed of its own: its Message-IDs come of it, and Cyrus drops a mail whose Message-ID it has seen.
    """
    return run_apart(Load((pair.near.lmtp,), tuple(users), connections, mails, seconds, MAIL_BYTES, seed=seed), ())


def begin(pair: Pair, seeds: Iterator[int]) -> int:
    """Deliver a first mail to each user, so that mailboxes exist. Return the number of mails."""
    return deliver(pair, pair.users, 1, mails=len(pair.users), seconds=FILLED_WITHIN_S, seed=next(seeds)).mails


def fill(pair: Pair, users: Sequence[str], mails: int, seeds: Iterator[int]) -> None:
    """Deliver this many mails, however long it takes."""
    deliver(pair, users, LANES, mails=mails, seconds=FILLED_WITHIN_S, seed=next(seeds))
