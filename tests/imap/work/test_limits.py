"""Limits on what one command may ask for: each refusal says the limit, is counted, and leaves the session usable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from replicator.config import LimitsConfig
from replicator.imap.services import ImapServices
from replicator.runtime.metrics import RefusalMetrics
from tests.imap.client import connected, fill, services
from tests.one_node import HookedMail, one_node

LIMITS = LimitsConfig(imap_search_keys=3, imap_fetch_items=3, imap_list_wildcards=3)


@pytest.mark.parametrize(
    ("limit", "allowed", "refused"),
    [
        ("imap_search_keys", "SEARCH NOT SEEN OR SEEN (DELETED)", "SEARCH NOT SEEN OR SEEN (DELETED ALL)"),
        ("imap_fetch_items", "FETCH 1:* (UID FLAGS UID)", "FETCH 1:* (UID FLAGS UID UID)"),
        ("imap_list_wildcards", 'LIST "*" "%a*"', 'LIST "*" "%a*b%"'),
        ("imap_list_wildcards", 'LIST "*" (a "%")', 'LIST "*" (a "%" b)'),
        ("imap_list_wildcards", 'LSUB "*" "%a*"', 'LSUB "*" "%a*b%"'),
    ],
)
async def test_request_beyond_a_limit_is_refused_and_counted(
    served: ImapServices, limit: str, allowed: str, refused: str
) -> None:
    registry = CollectorRegistry()
    served = replace(served, limits=LIMITS, refusals=RefusalMetrics(registry))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert (await client.run(allowed))[-1].startswith("t OK")
        answer = (await client.run(refused))[-1]
        assert answer.startswith("t NO [LIMIT] ")
        assert "may have 3 " in answer
        assert "not 4" in answer
        assert (await client.run(allowed))[-1].startswith("t OK")
    assert registry.get_sample_value("replicator_refusals_total", {"door": "imap", "limit": limit}) == 1


async def test_fields_beyond_the_limit_are_not_known_by_name(served: ImapServices, mail: HookedMail) -> None:
    served = replace(served, parsing=replace(served.parsing, max_fields=2))
    await fill(mail, 1, b"A: 1\r\nB: 2\r\nC: 3\r\n\r\nbody\r\n")
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run("SEARCH HEADER B 2") == ["* SEARCH 1", "t OK Searched"]
        assert await client.run("SEARCH HEADER C 3") == ["* SEARCH", "t OK Searched"]
        for section, fields in {"HEADER.FIELDS.NOT (A)": ["B: 2"], "HEADER": ["A: 1", "B: 2", "C: 3"]}.items():
            fetched = await client.run(f"FETCH 1 BODY.PEEK[{section}]")
            assert fetched[1:] == [*fields, ""]  # the empty line that ends the header
            await client.until("t")


async def test_one_folder_too_many_is_refused_and_counted(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    limits = LimitsConfig(imap_folders_per_user=3)
    async with one_node(tmp_path, limits=limits) as mail:
        served = replace(services(mail), limits=limits, refusals=RefusalMetrics(registry))
        async with connected(served) as client:
            await client.log_in("alice", "INBOX")
            for name in ("a", "b"):
                assert (await client.run(f"CREATE {name}"))[-1].startswith("t OK")
            for command in ("CREATE c", "RENAME a c/d", "RENAME INBOX c"):
                [answer] = await client.run(command)
                assert answer == "t NO [LIMIT] a user may have 3 folders; delete some first"
            for name in ("a", "b", "c"):
                assert (await client.run(f"SUBSCRIBE {name}"))[-1].startswith("t OK")
            assert await client.run("SUBSCRIBE d") == [
                "t NO [LIMIT] a user may have 3 subscriptions; remove some first"
            ]
    labels = {"door": "imap", "limit": "imap_folders_per_user"}
    assert registry.get_sample_value("replicator_refusals_total", labels) == 4


async def test_search_that_takes_too_much_work_is_refused_and_counted(served: ImapServices, mail: HookedMail) -> None:
    registry = CollectorRegistry()
    limits = LimitsConfig(imap_search_work=1000)
    served = replace(served, limits=limits, refusals=RefusalMetrics(registry))
    await fill(mail, 2, b"X: y\r\n" * 600 + b"\r\nbody\r\n")
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run("SEARCH NOT SEEN HEADER X y 1") == ["* SEARCH 1", "t OK Searched"]
        for command in ("SEARCH HEADER X none", "UID SEARCH NOT HEADER X none"):  # in the header of the second message
            [answer] = await client.run(command)
            assert answer.startswith("t NO [LIMIT] The SEARCH takes more than 1000 steps; ")
    assert registry.get_sample_value("replicator_refusals_total", {"door": "imap", "limit": "imap_search_work"}) == 2
