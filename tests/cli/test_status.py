from __future__ import annotations

import json
from pathlib import Path

import pytest

from replicator.cli.output import ago, size, utc
from replicator.config import Address, ListenConfig, config_text, default_config
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode, served_node


def write_config(directory: Path, listen: ListenConfig) -> Path:
    file = directory / "dc1.toml"
    file.write_text(config_text(default_config("dc1", directory, listen=listen), directory))
    return file


def test_status_shows_node_and_links(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    config = write_config(tmp_path, ListenConfig(http=Address("127.0.0.1", served.port)))
    result = invoke("status", "--config", config)
    assert (result.exit_code, result.stderr) == (0, "")
    text = " ".join(result.stdout.replace("│", " ").split())
    assert "dc1 (3)" in text
    assert "dc1 dc3 down never up - 7 2 KiB 1.5 127.0.0.1:4422: connection refused" in text
    assert "0.25 ms" in text
    assert "same state" not in text


@pytest.mark.parametrize(("digest", "agree"), [("d1" * 16, True), ("ee" * 16, False)])
def test_nodes_side_by_side_and_whether_they_agree(
    served: ServedNode,
    invoke: Invoke,
    digest: str,
    agree: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    with served_node() as other:
        other.report.sid, other.report.digest = "dc2", digest
        urls = ("--url", served.url, "--url", other.url)
        shown = invoke("status", *urls)
        document = json.loads(invoke("status", *urls, "--json").stdout)
    assert ("show the same state" in shown.stdout, "states differ" in shown.stdout) == (agree, not agree)
    assert document["agree"] is agree
    assert [node["status"]["sid"] for node in document["nodes"]] == ["dc1", "dc2"]


def test_node_that_does_not_answer_is_said_and_the_others_are_shown(served: ServedNode, invoke: Invoke) -> None:
    result = invoke("status", "--url", served.url, "--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "dc1 (3)" in result.stdout
    assert result.stderr == "Error: http://127.0.0.1:1: no answer (Connection refused); is the node running?\n"


def test_mailboxes_of_a_user_with_their_master_and_where_they_differ(served: ServedNode, invoke: Invoke) -> None:
    with served_node() as other:
        other.report.sid, other.report.digest = "dc2", "ee" * 16
        result = invoke("status", "--url", served.url, "--url", other.url, "--user", "bob")
    assert "INBOX dc1 4 1 4 KiB dc1: d1d1d1d1, dc2: eeeeeeee" in " ".join(result.stdout.split())
    document = json.loads(invoke("status", "--url", served.url, "--user", "bob", "--json").stdout)
    assert [box["user"] for box in document["nodes"][0]["mailboxes"]] == ["bob"]


def test_configuration_without_http_door(invoke: Invoke, tmp_path: Path) -> None:
    config = write_config(tmp_path, ListenConfig())
    result = invoke("status", "--config", config)
    assert result.exit_code == 2
    assert "no HTTP door" in result.stderr


def test_configuration_that_is_wrong_is_quoted_with_its_line(invoke: Invoke, tmp_path: Path) -> None:
    config = tmp_path / "dc1.toml"
    config.write_text('[node]\nid = "dc1"\ndate = "dc1"\n')
    result = invoke("status", "--config", config)
    assert result.exit_code == 2
    assert f"Error: {config}:3: " in result.stderr


def test_status_of_nothing_is_wrong_usage(invoke: Invoke) -> None:
    assert invoke("status").exit_code == 2


def test_numbers_that_people_read() -> None:
    assert [size(n) for n in (0, 1023, 1536, 5 << 20, 3 << 40)] == ["0 B", "1023 B", "1.5 KiB", "5 MiB", "3.0 TiB"]
    assert ago(0, 90_061_999) == "1 day, 1:01:01"
    assert ago(5_000, 0) == "0:00:00"
    assert utc(784_111_777_000) == "1994-11-06 08:49:37Z"
