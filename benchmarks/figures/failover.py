"""The interruption of writes when a node dies: the longest gap between two OKs to a client at another node.

The client delivers mail to one mailbox by LMTP at dc2, one after the other. The mailbox is mastered elsewhere; dc1 is
the root, by its lower SID. If a node is killed (SIGKILL), the system closes its connections, which its peers notice at
once; if it falls silent (SIGSTOP, like a power cut), they notice only by missing heartbeats.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

from benchmarks.clients.mails import MailTexts
from benchmarks.clients.wire import MeasurementError, connect_lmtp, deliver
from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.clusters.states import expect_master, make_master
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure

USER = "writer"
TIMEOUT_S = 4.0
"""Seconds, the default of `mastership.timeout`."""

MAIL_BYTES = 1024
WARM_MAILS = 30
"""Mails delivered before the node dies, and after writes go on.

They are few because a master, some seconds after it got the mailbox, gives it away to a node whose clients use it more.
"""

SETTLED_S = 2.0
"""Seconds to watch afterwards: writes may stop when one node notices the death, and again when another one does."""

RESUMES_WITHIN_S = 30.0
PAUSE_S = 0.002


@dataclass(frozen=True)
class Death:
    """One death.

    `gap_s`: the longest gap between two OKs that ends after it; `usual_gap_s`: the median gap before it.
    """

    gap_s: float
    usual_gap_s: float
    refused: int
    """Mails for which the client was told to try again."""


class Writer:
    """Delivers in a thread of its own until stopped. `oks`: the times by `perf_counter` when mails were accepted."""

    def __init__(self, node: Node) -> None:
        self.oks: list[float] = []
        self.refused: list[str] = []
        self._node = node
        self._error: BaseException | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def wait_for(self, count: int, after: float) -> None:
        """Wait until `count` mails were accepted after a moment."""
        deadline = time.perf_counter() + RESUMES_WITHIN_S
        while sum(ok > after for ok in list(self.oks)) < count:
            if self._error is not None or time.perf_counter() > deadline:
                raise MeasurementError(
                    f"writes do not go on: {self._error or self.refused[-1:]}\n{self._node.log_tail()}"
                )
            time.sleep(0.01)

    def _run(self) -> None:
        texts = MailTexts(MAIL_BYTES, seed=4)
        try:
            with connect_lmtp(self._node.address("lmtp")) as lmtp:
                while not self._ends.wait(PAUSE_S):
                    try:
                        deliver(lmtp, [USER], next(texts))
                    except MeasurementError as error:
                        self.refused.append(str(error))
                    else:
                        self.oks.append(time.perf_counter())
        except OSError as error:
            self._error = error


def failover(directory: Path, scale: Scale) -> list[Figure]:
    """Measure each kind of death several times; the worst case counts."""
    rows = []
    with Cluster(directory, [USER]) as cluster:
        for who, victim, master in (
            ("a mailbox's master", "dc3", "dc3"),
            ("the root", "dc1", "dc3"),
            ("a mailbox's master, also root,", "dc1", "dc1"),
        ):
            for what, death in (("is killed", Node.kill), ("falls silent", Node.pause)):
                deaths = [_death(cluster, victim, master, death) for _ in range(scale.deaths)]
                rows.append(_figure(f"{who} {what}", deaths, waits=death is Node.pause and victim == master))
    return rows


def _figure(what: str, deaths: Sequence[Death], *, waits: bool) -> Figure:
    """Return the figure. `waits`: writes cannot go on before the silence is noticed."""
    return Figure(
        f"no writes when {what}, worst of {len(deaths)}",
        max(death.gap_s for death in deaths),
        "s",
        TIMEOUT_S if waits else None,
        "until it is noticed" if waits else "",
        f"under {TIMEOUT_S + 1:.0f} s",
        {"deaths": [asdict(death) for death in deaths]},
    )


def _death(cluster: Cluster, victim_sid: str, master: str, death: Callable[[Node], None]) -> Death:
    at, victim = cluster.node("dc2"), cluster.node(victim_sid)
    _make_master(cluster.node(master))
    with Writer(at) as writer:
        writer.wait_for(WARM_MAILS, 0.0)
        expect_master(at, USER, master)
        died = time.perf_counter()
        death(victim)
        writer.wait_for(WARM_MAILS, died)
        writer.wait_for(1, max(died + TIMEOUT_S, time.perf_counter()) + SETTLED_S)
    gaps = [(later - earlier, later > died) for earlier, later in pairwise(writer.oks)]
    victim.kill()  # a silent node must not resume its work
    victim.start()
    cluster.wait_together()
    usual = statistics.median(gap for gap, is_after in gaps if not is_after)
    return Death(max(gap for gap, is_after in gaps if is_after), usual, len(writer.refused))


def _make_master(node: Node) -> None:
    with connect_lmtp(node.address("lmtp")) as lmtp:
        deliver(lmtp, [USER], next(MailTexts(MAIL_BYTES, seed=5)))
    make_master(node, USER)
