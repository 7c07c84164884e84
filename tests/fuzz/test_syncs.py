"""Some rounds of users who change mail in the midst of syncs with Debian's Dovecot; `make fuzz` plays many more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.dsync.dovecot import needs_dovecot
from tests.effort import examples
from tests.fuzz.syncs.campaign import played, servers
from tests.fuzz.syncs.round import Round, Server

pytestmark = needs_dovecot
SEEDS = range(examples(3, 12))


@pytest.fixture(scope="module")
def running() -> Iterator[Mapping[str, Server]]:
    with servers() as found:
        yield found


@pytest.mark.parametrize("kind", ["s", "f", None])
async def test_both_sides_keep_all_mail(running: Mapping[str, Server], kind: str | None) -> None:
    disturbed = 0
    for seed in SEEDS:
        one = Round(seed, running, kind=kind)
        problem = await played(one)
        assert problem is None, problem
        disturbed += one.disturbed
    assert disturbed, "users have done nothing during syncs"
