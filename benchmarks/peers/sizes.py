"""Sizes of the loads: in a quick run and in a full one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    rounds: int
    delivery_s: float
    """Seconds of each delivery."""
    samples: int
    """Mails whose way to the other server is timed."""
    messages: int
    """Messages that a new second server is to get, half of them in one mailbox."""
    changes: int
    """Times that ten messages of that mailbox are changed."""
    times: int
    """Repetitions of each IMAP command."""
    sessions: int
    """Sessions that only wait."""


QUICK = Sizes(rounds=1, delivery_s=2, samples=5, messages=1_000, changes=2, times=1, sessions=50)
FULL = Sizes(rounds=3, delivery_s=6, samples=20, messages=5_000, changes=5, times=3, sessions=200)
