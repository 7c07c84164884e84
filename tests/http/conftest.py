from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from replicator.http.services import HttpServices
from replicator.imap.rendering.outline import MESSAGE_IDS
from replicator.runtime.metrics import HttpMetrics
from replicator.users import UserDirectory
from tests.http.fixed_jobs import FixedJobs
from tests.http.fixed_report import FixedReport, FixedSearchTexts
from tests.one_node import HookedMail, Names, one_node

NOW_MS = 784_111_777_000


@pytest.fixture
async def mail(tmp_path: Path) -> AsyncIterator[HookedMail]:
    async with one_node(tmp_path) as mail:
        yield mail


@pytest.fixture
def report() -> FixedReport:
    return FixedReport()


@pytest.fixture
def search_texts() -> FixedSearchTexts:
    return FixedSearchTexts()


@pytest.fixture
def services(mail: HookedMail, report: FixedReport, search_texts: FixedSearchTexts, tmp_path: Path) -> HttpServices:
    registry = CollectorRegistry()
    Gauge("replicator_test", "For the test.", registry=registry).set(7)
    users = Names("alice", "bob", "ann@example.org")
    return HttpServices(
        sid="dc1",
        peers=frozenset({"dc2", "dc3"}),
        mail=mail,
        status=report,
        users=users,
        registry=registry,
        masters=report,
        checkpoints=report,
        tasks=FixedJobs().tasks(),
        stories=mail.stories(),
        tracer=mail.tracer(),
        oversight=UserDirectory(tmp_path / "users.passwd"),
        message_ids=MESSAGE_IDS,
        search_texts=search_texts,
        metrics=HttpMetrics(registry),
        clock_ms=lambda: NOW_MS,
    )
