"""Sizes of the measurements: in a quick run and in a full one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    delivery_s: float
    samples: int
    fetch_messages: int
    stored_messages: int
    deaths: int
    """Repetitions of each kind of death."""
    forked_mailboxes: int
    changes_a_side: int
    """Changes to one mailbox on each side, while its nodes are separated."""
    sizes: tuple[int, ...]
    """Numbers of nodes in the clusters whose traffic is counted."""
    counted_changes: int
    far_samples: int
    """Samples of latencies between distant nodes."""
    far_load_s: float
    """Seconds of load with delay, and as many without."""
    rows: int
    """Messages of one mailbox, and of all, where one of two nodes is behind."""
    differences: tuple[int, ...]
    """Numbers of differences in that mailbox."""
    mailbox_sizes: tuple[int, ...]
    """Sizes of mailboxes with a few differences each, besides those of `differences`."""
    mailboxes: int
    """Number of mailboxes that are equal."""
    joined_mailboxes: int
    """Mailboxes of a new node, with `rows` messages in all."""
    large_mib: tuple[int, ...]
    """Sizes of large mails, in MiB."""
    shared_mails: int
    """Mails that all contain the same file."""
    attachment_rounds: int
    """Rounds of 32 stores, or of 256 links."""
    imap_messages: int
    """Messages of the mailbox that is read by IMAP."""
    imap_sessions: int
    """Sessions that only wait."""
    imap_idle_s: float
    imap_workers: int
    """Sessions that work at the same time."""
    imap_busy_s: float
    door_messages: int
    """Messages of each client that reads from a door's process."""
    door_searched_messages: int
    """Messages of a mailbox that is searched beside deliveries."""
    door_delivery_s: float
    crowd_users: int
    """Users whom nobody uses, of a node with very many."""
    crowd_mailboxes: int
    """Mailboxes of each of them."""
    crowd_messages: int
    """Messages in each of these."""
    crowd_forked: int
    """The forked ones among their mailboxes."""
    crowd_join_s: float
    """Seconds in which a new node takes over what it can."""
    synced_mails: int
    """Mails of a mailbox that is synced with a Dovecot."""
    crowd_template: str = ""
    """File of which the nodes' databases are copies; empty: they are made."""


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
    rows=10_000,
    differences=(1, 20, 100),
    mailbox_sizes=(1_000, 10_000),
    mailboxes=1_000,
    joined_mailboxes=20,
    large_mib=(1, 10),
    shared_mails=100,
    attachment_rounds=6,
    imap_messages=10_000,
    imap_sessions=50,
    imap_idle_s=5,
    imap_workers=10,
    imap_busy_s=5,
    door_messages=300,
    door_searched_messages=2_000,
    door_delivery_s=3,
    crowd_users=2_000,
    crowd_mailboxes=10,
    crowd_messages=2,
    crowd_forked=200,
    crowd_join_s=30,
    synced_mails=2_000,
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
    rows=100_000,
    differences=(1, 10, 20, 100, 1_000, 10_000),
    mailbox_sizes=(1_000, 10_000),
    mailboxes=10_000,
    joined_mailboxes=200,
    large_mib=(1, 10, 100),
    shared_mails=1_000,
    attachment_rounds=30,
    imap_messages=100_000,
    imap_sessions=200,
    imap_idle_s=30,
    imap_workers=50,
    imap_busy_s=20,
    door_messages=1_500,
    door_searched_messages=20_000,
    door_delivery_s=10,
    crowd_users=80_000,
    crowd_mailboxes=10,
    crowd_messages=4,
    crowd_forked=2_000,
    crowd_join_s=60,
    synced_mails=50_000,
)
