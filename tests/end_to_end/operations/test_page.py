"""The page for operators in a real browser, of a real cluster of two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster
from tests.browser import Tab, browser, needs_chromium

pytestmark = [needs_chromium, pytest.mark.long]

HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, ["alice"], size=2) as nodes:
        yield nodes


async def link_is(tab: Tab, state: str) -> None:
    await tab.until(f"document.querySelector('tr[data-peer=dc2]').textContent.includes('{state} for')")


async def test_page_shows_the_links_as_nodes_come_and_go(cluster: Cluster) -> None:
    one, other = cluster.nodes
    url = f"http://127.0.0.1:{one.ports['http']}/"
    with one.imap("alice") as client:
        client.command(f'CREATE "{HOSTILE.replace(chr(34), chr(92) + chr(34))}"')
    async with browser() as driven:
        tab = await driven.tab()
        await tab.open(url)
        await tab.until("!document.getElementById('node').hidden")
        await link_is(tab, "✓up")
        assert "dc1 reaches dc2." in await tab.text("#cluster")
        assert await tab.evaluate("document.querySelectorAll('.picture .cross').length") == 0
        assert "free of" in await tab.text("#store")

        await tab.evaluate("document.getElementById('user').focus()")
        await tab.type("alice")
        await tab.press("Enter")
        await tab.until(f"document.querySelector('#folders').textContent.includes({HOSTILE!r})")
        assert await tab.evaluate("document.querySelectorAll('img').length") == 1
        assert await tab.evaluate("document.title") == "dc1 · mail-replicator"

        other.kill()
        await link_is(tab, "✕down")
        await tab.until("document.querySelector('#cluster').textContent.includes('dc1 reaches no other node.')")
        assert await tab.evaluate("document.querySelectorAll('.picture .cross').length") == 1
        assert "No link to dc2 for" in await tab.text("#health")
        other.start()
        await link_is(tab, "✓up")

        one.kill()
        await tab.until("document.getElementById('line').textContent.includes('the node does not answer')")
        assert "Not known now; before, the node was healthy" in await tab.text("#health")
        one.start()
        await tab.until("document.getElementById('line').textContent === '✓live'")
        await link_is(tab, "✓up")

        assert [asked for asked in tab.requests if not asked.startswith(url)] == []
        assert tab.complaints == []
