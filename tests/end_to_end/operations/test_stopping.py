"""Log lines of a node about a peer that was stopped, and of one whose link broke."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from replicator.cli.authority import Authority
from replicator.config import Address, Config, ListenConfig, PeerConfig, default_config
from replicator.node import run_node
from tests.end_to_end.helpers.in_process import free_ports


def two_nodes(directory: Path, *, tls: bool) -> list[Config]:
    addresses = dict(zip(("dc1", "dc2"), [Address("127.0.0.1", port) for port in free_ports(2)], strict=True))
    nodes = []
    authority = Authority.create(directory, "tests")
    for sid, other in (("dc1", "dc2"), ("dc2", "dc1")):
        authority.issue(sid)
        peers = (PeerConfig(other, addresses[other]),)
        config = default_config(sid, directory, listen=ListenConfig(addresses[sid]), peers=peers)
        nodes.append(replace(config, tls=authority.files(sid)) if tls else config)
    return nodes


async def said(caplog: pytest.LogCaptureFixture, text: str) -> logging.LogRecord:
    """Return the record that begins with this text, once it is there."""
    while not (found := [one for one in caplog.records if one.getMessage().startswith(text)]):  # noqa: ASYNC110
        await trio.sleep(0.01)
    return found[0]


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize(("stops", "stays"), [("dc1", "dc2"), ("dc2", "dc1")])
async def test_peer_that_stops_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stops: str, stays: str, *, tls: bool
) -> None:
    caplog.set_level(logging.INFO)
    stopping = trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for config in two_nodes(tmp_path, tls=tls):
                asked = stopping if config.node.id == stops else None
                nursery.start_soon(partial(run_node, config, ready=lambda: None, stopping=asked))
            for sid in (stops, stays):
                await said(caplog, f"link to {sid} is up")
            caplog.clear()
            stopping.set()
            record = await said(caplog, f"link to {stops} is down")
            assert (record.getMessage(), record.levelname) == (f"link to {stops} is down: {stops} has stopped", "INFO")
            if stays < stops:  # it dials
                again = await said(caplog, f"link to {stops} is down: Connection refused")
                assert again.levelname == "INFO"
            nursery.cancel_scope.cancel()


async def test_peer_that_vanishes_is_reported_as_a_broken_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    near, far = two_nodes(tmp_path, tls=True)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(run_node, near, ready=lambda: None))
            with trio.CancelScope() as power:
                async with trio.open_nursery() as elsewhere:
                    elsewhere.start_soon(partial(run_node, far, ready=lambda: None))
                    await said(caplog, "link to dc2 is up")
                    await said(caplog, "link to dc1 is up")
                    caplog.clear()
                    power.cancel()
            assert (await said(caplog, "link to dc2 is down")).levelname == "WARNING"
            nursery.cancel_scope.cancel()
