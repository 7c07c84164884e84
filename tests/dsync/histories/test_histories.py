"""Random histories of one Dovecot and three nodes, with partitions between these: in the end all show the same.

`FIRST_SEED=n BATCHES=n pytest tests/dsync/histories` tries others, and `ONLY="s3n7 s3n8"` these users alone; the number
after the `s` is the seed. Histories of a batch share its partitions. A seed fixes what users want to do, but not the
timing of the nodes: a history that has failed need not fail again. A failure tells the user's story, with what both
sides show after each sync: folders with the ends of their ids, UIDVALIDITY and UIDNEXT, and mails as UID=number/end of
GUID.
"""

from __future__ import annotations

import imaplib
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from operator import methodcaller
from random import Random

import pytest

from tests.dsync.dovecot import needs_dovecot
from tests.dsync.histories.history import History
from tests.dsync.histories.pushed_history import PushedHistory
from tests.dsync.histories.servers import PARTITIONS, PUSHED, TOGETHER, Servers
from tests.dsync.histories.servers import servers as started_servers
from tests.dsync.histories.side import RefusedError
from tests.effort import examples

pytestmark = needs_dovecot
FIRST = int(os.environ.get("FIRST_SEED", "0"))
BATCHES = range(FIRST, FIRST + int(os.environ.get("BATCHES", str(examples(1, 5)))))
HISTORIES = examples(8, 40)  # in a batch
ONLY = os.environ.get("ONLY", "").split()
AT_ONCE = 4  # histories
PARTS = 4  # of a history
CALLED = "s"
"""Begin of the names of users whose syncs Dovecot begins."""

Step = Callable[[History | PushedHistory], None]
FAILURES = (AssertionError, RefusedError, OSError, imaplib.IMAP4.error, subprocess.SubprocessError)


def users_of(batch: int, kind: str) -> list[str]:
    users = [f"{kind}{batch}n{number}" for number in range(HISTORIES)]
    return [user for user in users if user in ONLY] if ONLY else users


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    users = [user for kind in (CALLED, PUSHED) for batch in BATCHES for user in users_of(batch, kind)]
    with started_servers(tmp_path_factory.mktemp("histories") / "nodes", users) as started:
        yield started


@pytest.mark.parametrize("batch", BATCHES)
def test_all_servers_become_equal(servers: Servers, batch: int) -> None:
    play(servers, batch, CALLED)


@pytest.mark.parametrize("batch", BATCHES[:2])
def test_all_servers_become_equal_by_themselves(servers: Servers, batch: int) -> None:
    play(servers, batch, PUSHED)


def play(servers: Servers, batch: int, kind: str) -> None:
    """Let the users of a batch have their histories, side by side."""
    random, failures = Random(batch), dict[str, str]()
    with ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as threads:
        history_of = History if kind == CALLED else PushedHistory
        histories = [history_of(servers, user, stack) for user in users_of(batch, kind)]

        def each(step: Step) -> None:
            def take(history: History | PushedHistory) -> None:
                try:
                    step(history)
                except FAILURES as error:
                    failures[history.user] = "\n".join([*history.story, f"{type(error).__name__}: {error}"])

            list(threads.map(take, [history for history in histories if history.user not in failures]))

        for _ in range(PARTS):
            groups = random.choice(PARTITIONS)
            servers.part(groups)
            each(methodcaller("go_on", groups))
        servers.part(TOGETHER)
        servers.cluster.wait_until_equal()
        each(methodcaller("end"))
    print("syncs in the end:", Counter(history.syncs for history in histories))  # noqa: T201 - shown if some fail
    assert not failures, "\n\n".join(f"==== {user}\n{story}" for user, story in failures.items())
