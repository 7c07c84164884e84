import json

import pytest

from replicator.cli.api.client import _reasons
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode


def test_healthy_node(served: ServedNode, invoke: Invoke) -> None:
    result = invoke("health", "--url", served.url)
    assert (result.exit_code, result.stdout) == (0, f"{served.url} is healthy\n")
    assert json.loads(invoke("health", "--json", "--url", served.url).stdout) == {"healthy": True, "reasons": []}


def test_reasons_of_ill_health(served: ServedNode, invoke: Invoke) -> None:
    served.report.reasons = ["the disk is full", "it waits for dc2"]
    result = invoke("health", "--url", served.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {served.url}: the disk is full; it waits for dc2\n"
    result = invoke("health", "--json", "--url", served.url)
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"healthy": False, "reasons": ["the disk is full", "it waits for dc2"]}


def test_node_that_is_not_healthy_is_alive(served: ServedNode, invoke: Invoke) -> None:
    served.report.reasons = ["the disk is full"]
    result = invoke("health", "--live", "--url", served.url)
    assert (result.exit_code, result.stdout) == (0, f"{served.url} answers\n")
    assert json.loads(invoke("health", "--live", "--json", "--url", served.url).stdout) == {"live": True}


@pytest.mark.parametrize("options", [[], ["--live"]])
def test_node_that_does_not_run(invoke: Invoke, options: list[str]) -> None:
    result = invoke("health", *options, "--url", "http://127.0.0.1:1")
    assert (result.exit_code, "no answer" in result.stderr) == (1, True)


def test_reasons_are_not_for_strangers() -> None:
    assert _reasons({"sid": "dc1", "healthy": False}) == ["not healthy; it tells why to those who have a token"]
