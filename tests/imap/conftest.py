from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from replicator.imap.services import ImapServices
from tests.imap.client import services
from tests.one_node import HookedMail, one_node


@pytest.fixture
async def mail(tmp_path: Path) -> AsyncIterator[HookedMail]:
    async with one_node(tmp_path) as mail:
        yield mail


@pytest.fixture
def served(mail: HookedMail) -> ImapServices:
    return services(mail)
