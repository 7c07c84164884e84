"""How much of each is done: in a quick run and in a full one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    delivery_s: float
    samples: int
    fetch_messages: int
    stored_messages: int
    deaths: int
    """Of each kind."""
    forked_mailboxes: int
    changes_a_side: int
    """To one mailbox, while its nodes are parted."""
    sizes: tuple[int, ...]
    """Clusters whose traffic is counted, in nodes."""
    counted_changes: int
    far_samples: int
    """Of latencies between nodes far apart."""
    far_load_s: float
    """With delay, and as long without."""


QUICK = Scale(
    delivery_s=4,
    samples=40,
    fetch_messages=1_000,
    stored_messages=4_000,
    deaths=1,
    forked_mailboxes=100,
    changes_a_side=500,
    sizes=(3, 5),
    counted_changes=100,
    far_samples=10,
    far_load_s=6,
)
FULL = Scale(
    delivery_s=20,
    samples=300,
    fetch_messages=10_000,
    stored_messages=100_000,
    deaths=3,
    forked_mailboxes=1_000,
    changes_a_side=10_000,
    sizes=(3, 5, 9),
    counted_changes=300,
    far_samples=40,
    far_load_s=15,
)
