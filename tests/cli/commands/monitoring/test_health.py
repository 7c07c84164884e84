import json
import threading
from pathlib import Path

import pytest

from replicator.cli.api.client import _reasons
from replicator.config import Address, ListenConfig, config_text, default_config
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


def test_wait_ends_when_the_node_is_healthy(served: ServedNode, invoke: Invoke) -> None:
    served.report.reasons = ["it waits for dc2"]
    threading.Timer(1.0, served.report.reasons.clear).start()
    result = invoke("health", "--wait", "1h", "--url", served.url)
    assert (result.exit_code, result.stdout) == (0, f"{served.url} is healthy\n")
    assert result.stderr == "waiting: it waits for dc2\n"


def test_wait_for_a_node_that_does_not_become_healthy(served: ServedNode, invoke: Invoke) -> None:
    served.report.reasons = ["it waits for dc2"]
    result = invoke("health", "--wait", "10ms", "--url", served.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"waiting: it waits for dc2\nError: {served.url}: it waits for dc2\n"


def test_wait_for_a_node_that_starts_later(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    """Without an HTTP listener it cannot be found before; its configuration is right all the same."""
    file, later = tmp_path / "dc1.toml", tmp_path / "later.toml"
    file.write_text(config_text(default_config("dc1", tmp_path), tmp_path), "utf-8")
    assert invoke("health", "--config", file).exit_code == 2
    listen = ListenConfig(http=Address("127.0.0.1", served.port))
    later.write_text(config_text(default_config("dc1", tmp_path, listen=listen), tmp_path), "utf-8")
    threading.Timer(1.0, later.rename, (file,)).start()
    result = invoke("health", "--wait", "1h", "--config", file)
    assert (result.exit_code, result.stdout) == (0, "dc1 is healthy\n")
    assert "the node cannot be reached" in result.stderr


def test_wait_does_not_hide_wrong_usage(invoke: Invoke, tmp_path: Path) -> None:
    wrong = tmp_path / "dc1.toml"
    wrong.write_text("[nodes]\n", "utf-8")
    assert invoke("health", "--wait", "1h", "--config", wrong).exit_code == 2
    result = invoke("health", "--wait", "soon", "--config", wrong)
    assert (result.exit_code, "expected a duration such as" in result.stderr) == (2, True)
