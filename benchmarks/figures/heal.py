"""The time from the moment that a link is back until all nodes show the same.

dc3 is cut off from dc1 and dc2, and both sides change the same mailboxes. Then the lines are mended, and the time is
taken until the digests of all three are equal and no entry waits. It includes noticing that the link is back: nodes
dial again every two seconds at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.clients.load import Load
from benchmarks.clusters.apart import run_apart
from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.clusters.states import are_equal, mailbox
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure

SIDES = ("dc1", "dc2"), ("dc3",)
USER = "busy"
RECIPIENTS = 50
"""Recipients of one mail, where every mailbox is to get one."""

MAIL_BYTES = 700
CONNECTIONS = 8
PARTED_WITHIN_S, HEALED_WITHIN_S, LOAD_LIMIT_S = 20.0, 300.0, 200.0


def heal(directory: Path, scale: Scale) -> list[Figure]:
    return [
        _many_mailboxes(directory / "many", scale.forked_mailboxes),
        _one_mailbox(directory / "one", scale.changes_a_side),
    ]


def _many_mailboxes(directory: Path, count: int) -> Figure:
    """Measure mailboxes that exist on both sides: each side delivers one mail to each of them."""
    users = [f"user{number:04d}" for number in range(1, count + 1)]
    with Cluster(directory, users, proxied=True) as cluster:
        dc1, _, dc3 = cluster.nodes
        _deliver_to_each(dc1, users, seed=10)
        cluster.wait_until(are_equal, HEALED_WITHIN_S)
        _part(cluster)
        _deliver_to_each(dc1, users, seed=11)
        _deliver_to_each(dc3, users, seed=12)
        seconds, detail = _healed(cluster)
        boxes = [mailbox(dc3, user)["messages"] for user in (users[0], users[-1])]
    name = f"from heal to equal digests, {count:,} forked mailboxes"
    return Figure(name, seconds, "s", detail=detail | {"messages_in_first_and_last": boxes})


def _one_mailbox(directory: Path, changes: int) -> Figure:
    """Measure one mailbox.

    Half of the changes are new mails; the others set a flag, each on another mail of its own side.
    """
    with Cluster(directory, [USER], proxied=True) as cluster:
        dc1, _, dc3 = cluster.nodes
        _deliver_to_each(dc1, [USER], seed=20)
        cluster.wait_until(are_equal, HEALED_WITHIN_S)
        _part(cluster)
        for node in (dc1, dc3):
            _change(node, changes)
        seconds, detail = _healed(cluster)
        detail["messages"] = mailbox(dc1, USER)["messages"]
    return Figure(
        f"from heal to equal digests, one mailbox with {changes:,} changes a side", seconds, "s", detail=detail
    )


def _part(cluster: Cluster) -> None:
    cluster.partition(*SIDES)
    components = [[*side] for side in SIDES for _ in side]
    cluster.wait_until(lambda statuses: [status["component"] for status in statuses] == components, PARTED_WITHIN_S)


def _healed(cluster: Cluster) -> tuple[float, dict[str, object]]:
    before = cluster.usage()
    cluster.heal()
    seconds = cluster.wait_until(are_equal, HEALED_WITHIN_S)
    after = cluster.usage()
    cpu = {sid: after[sid].cpu_s - before[sid].cpu_s for sid in before}
    return seconds, {"cpu_s": cpu, "rss_mib": {sid: after[sid].rss_bytes / 2**20 for sid in after}}


def _deliver_to_each(node: Node, users: Sequence[str], seed: int) -> None:
    """Deliver one mail to each user, by one connection: so all users have their turn."""
    recipients = min(RECIPIENTS, len(users))
    mails = -(-len(users) // recipients)
    load = Load((node.address("lmtp"),), tuple(users), 1, mails, LOAD_LIMIT_S, MAIL_BYTES, recipients, seed=seed)
    run_apart(load, [node])


def _change(node: Node, changes: int) -> None:
    mails = changes // 2
    load = Load((node.address("lmtp"),), (USER,), CONNECTIONS, mails, LOAD_LIMIT_S, MAIL_BYTES, seed=int(node.sid[2:]))
    run_apart(load, [node])
    with node.imap(USER) as imap:
        imap.command("SELECT INBOX")
        for number in range(2, changes - mails + 2):  # the first one was there before
            imap.command(f"STORE {number} +FLAGS.SILENT (\\Seen)")
