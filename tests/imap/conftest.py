from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from replicator.imap.services import ImapServices
from tests.imap.arrangements import ARRANGEMENTS
from tests.imap.client import services
from tests.one_door import remote_mail
from tests.one_node import HookedMail, one_node


@pytest.fixture
async def mail(tmp_path: Path) -> AsyncIterator[HookedMail]:
    async with one_node(tmp_path) as mail:
        yield mail


@pytest.fixture(params=ARRANGEMENTS)
async def served(mail: HookedMail, request: pytest.FixtureRequest) -> AsyncIterator[ImapServices]:
    """The services of a door in the core's process, and of one in a process of its own."""
    if request.param == "in the core":
        yield services(mail)
        return
    async with remote_mail(mail) as apart:
        yield services(apart)
