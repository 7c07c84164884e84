from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Gauge

from replicator.http.services import HttpServices
from replicator.metrics import HttpMetrics
from tests.http.memory_mail import FixedReport, FixedUsers, MemoryMail


@pytest.fixture
def mail() -> MemoryMail:
    return MemoryMail()


@pytest.fixture
def report() -> FixedReport:
    return FixedReport()


@pytest.fixture
def services(mail: MemoryMail, report: FixedReport) -> HttpServices:
    registry = CollectorRegistry()
    Gauge("replicator_test", "For the test.", registry=registry).set(7)
    return HttpServices(
        sid="dc1",
        mail=mail,
        status=report,
        users=FixedUsers(),
        registry=registry,
        metrics=HttpMetrics(registry),
        clock_ms=lambda: 784_111_777_000,
    )
