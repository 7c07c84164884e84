"""Random histories of one Dovecot and three nodes, with partitions between them: in the end all show the same.

`FIRST_SEED=n BATCHES=n pytest tests/dsync/histories` tries others. A batch shares its partitions. A seed fixes what
users want to do, but not the timing of the nodes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random

import pytest

from benchmarks.clusters.cluster import Cluster
from replicator.config import Address
from tests.dsync.dovecot import IMAP, PASSWORD, dovecot, needs_dovecot
from tests.dsync.histories.history import History, Servers
from tests.effort import examples
from tests.end_to_end.helpers.in_process import free_ports

pytestmark = needs_dovecot
FIRST = int(os.environ.get("FIRST_SEED", "0"))
BATCHES = range(FIRST, FIRST + int(os.environ.get("BATCHES", str(examples(1, 5)))))
ONLY = os.environ.get("ONLY")
AT_ONCE = 4
HISTORIES = examples(16, 40)
PARTS = 4
SHORT_TIMEOUTS = '[mastership]\nheartbeat = "500ms"\ntimeout = "2s"\n'
DOOR = '[doveadm]\npassword_file = "secret"\n'
SIDS = ("dc1", "dc2", "dc3")
Groups = Collection[Collection[str]]


def user_of(batch: int, number: int) -> str:
    return f"s{batch}n{number}"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("histories") / "nodes"
    directory.mkdir()
    (directory / "secret").write_text(f"{PASSWORD}\n", "utf-8")
    users = [user_of(batch, number) for batch in BATCHES for number in range(HISTORIES)]
    address = Address("127.0.0.1", free_ports(1)[0])
    cluster = Cluster(directory, users, proxied=True, extra=SHORT_TIMEOUTS + DOOR, more_doors=["doveadm"])
    with dovecot(more=IMAP.format(address=address)) as server, cluster:
        yield Servers(server, address, cluster)


@pytest.mark.parametrize("batch", BATCHES)
def test_all_servers_become_equal(servers: Servers, batch: int) -> None:
    random = Random(batch)
    with ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as threads:
        names = [name for number in range(HISTORIES) if (name := user_of(batch, number)) in (ONLY.split() if ONLY else [name])]
        histories = [History(servers, name, Random(name), stack) for name in names]
        failures = dict[str, str]()

        def each(step: Callable[[History], None]) -> None:
            def carefully(history: History) -> None:
                try:
                    step(history)
                except Exception as error:
                    failures[history.user] = "\n".join([*history.story, f"{type(error).__name__}: {error}"])

            list(threads.map(carefully, [one for one in histories if one.user not in failures]))

        for _ in range(PARTS):
            groups = random.choice(PARTITIONS)
            part(servers.cluster, groups)
            each(lambda history: history.go_on(groups))
        part(servers.cluster, TOGETHER)
        servers.cluster.wait_until_equal()
        each(lambda history: history.end())
    print(Counter(history.syncs for history in histories))
    assert not failures, "\n\n".join(f"==== {user}\n{story}" for user, story in failures.items())


TOGETHER: Groups = [SIDS]
PARTITIONS: list[Groups] = [
    TOGETHER,
    [["dc1"], ["dc2"], ["dc3"]],
    *([[sid], [other for other in SIDS if other != sid]] for sid in SIDS),
]


def part(cluster: Cluster, groups: Groups) -> None:
    """Let nodes of different groups not reach each other, and wait until they know it."""
    cluster.partition(*groups)
    group_of = {sid: set(group) for group in groups for sid in group}
    cluster.wait_until(
        lambda statuses: all(
            set(status["component"]) == group_of[status["sid"]] and not status["not_serving"] for status in statuses
        ),
        60,
    )
