"""Two of our nodes with `durability.copies = 2`: OK means that a mail is on both disks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Self

import psutil

from benchmarks.clusters.cluster import OWN_OBJECTS, Cluster, Node, Site
from benchmarks.clusters.states import are_equal
from benchmarks.peers.pairs.pair import Doors, Pair
from benchmarks.peers.pairs.processes import APART, with_descendants


class Ours(Pair):
    name = "mail-replicator"

    def __init__(self, directory: Path, users: Sequence[str], *, late: bool = False) -> None:
        super().__init__(directory, users, late=late)
        sites = {sid: Site(shlex.join(APART), extra=OWN_OBJECTS.format(sid=sid)) for sid in ("dc1", "dc2")}
        self._cluster = Cluster(directory, users, size=2, copies=2, sites=sites, late=["dc2"] if late else [])
        self._near, self._far = self._cluster.nodes

    @classmethod
    def version(cls) -> str:
        return version("mail-replicator")

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.__exit__(None, None, None)

    @property
    def near(self) -> Doors:
        return _doors(self._near)

    @property
    def far(self) -> Doors:
        return _doors(self._far)

    def start_far(self) -> None:
        self._far.start()

    def is_filled(self) -> bool:
        statuses = [node.get("/api/v1/status") for node in self._cluster.nodes]
        return are_equal(statuses) and statuses[1]["texts_lacking"] == 0

    def near_processes(self) -> list[psutil.Process]:
        return with_descendants(self._near.pid)

    def far_processes(self) -> list[psutil.Process]:
        return with_descendants(self._far.pid)

    def log_tail(self) -> str:
        return "\n".join(f"{node.sid}: {node.log_tail()}" for node in self._cluster.nodes if node.is_running)


def _doors(node: Node) -> Doors:
    return Doors(node.address("lmtp"), node.address("imap"))
