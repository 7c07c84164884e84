import json
from dataclasses import replace

import pytest
import trio

from replicator.http import api
from replicator.status import CheckpointStatus
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode

IN_2100_MS = 4_102_444_800_000
EARLIER = "the manifest of 1970-01-01 00:01:20 UTC"


def test_checkpoint_tells_what_was_written_and_who_must_settle(served: ServedNode, invoke: Invoke) -> None:
    served.report.written_ms = IN_2100_MS
    result = invoke("checkpoint", "--url", served.url)
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        [
            "3 checkpoints written, 2 KiB",
            "the manifest of 2100-01-01 00:00:00 UTC lists 4 mailboxes and trees",
            "log entries that it covers are kept until dc2 confirms to show all of it; nodes do so every 10 seconds",
        ],
    )


def test_checkpoint_tells_that_nothing_was_written(served: ServedNode, invoke: Invoke) -> None:
    kept = "log entries that it covers are kept until dc2 confirms to show all of it; nodes do so every 10 seconds"
    assert invoke("checkpoint", "--url", served.url).stdout.splitlines() == [
        f"nothing has changed since {EARLIER}, which lists 4 mailboxes and trees",
        kept,
    ]
    served.report.unsaved = True
    assert invoke("checkpoint", "--url", served.url).stdout.splitlines() == [
        f"nothing was written: {EARLIER}, which lists 4 mailboxes and trees, is not in force yet",
        "later changes will be written once it is",
        kept,
    ]
    served.report.checkpoint = replace(served.report.checkpoint, in_force=True, waits_for=())
    assert invoke("checkpoint", "--url", served.url).stdout.splitlines() == [
        f"nothing has changed since {EARLIER}, which lists 4 mailboxes and trees",
        "it is in force: the log entries that it covers are deleted",
    ]


def test_checkpoint_tells_why_and_until_when_log_entries_are_kept(served: ServedNode, invoke: Invoke) -> None:
    served.report.checkpoint = replace(served.report.checkpoint, waits_for=("dc1", "dc2", "dc3", "dc9"))
    away = "has not been reached since dc1 was started at 1970-01-01 00:00:01 UTC"
    assert invoke("checkpoint", "--url", served.url).stdout.splitlines()[1:] == [
        "log entries that it covers are kept until dc1, dc2 confirm to show all of it; nodes do so every 10 seconds",
        f"log entries that it covers are kept for dc3, which {away}",
        "log entries that it covers are kept for dc9, which is no [[peer]] of dc1 and cannot be reached",
        "they are kept until 1970-01-02 00:01:20 UTC (`log.keep`), or until the log exceeds 1 GiB (`log.max_size`)",
        "a node that comes back after that takes over what other nodes show",
    ]


def test_checkpoint_that_takes_long_is_told_to_be_unfinished(
    served: ServedNode, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "CHECKPOINT_WAIT_S", 0.0)
    served.report.checkpoint = replace(served.report.checkpoint, saved=1, saved_bytes=100)
    monkeypatch.setattr(served.report, "checkpoint_now", trio.sleep_forever)
    shown = invoke("checkpoint", "--url", served.url).stdout
    assert shown == "not finished yet: 1 checkpoint written so far, 100 B; the node continues by itself\n"


def test_checkpoint_reports_as_json(served: ServedNode, invoke: Invoke) -> None:
    served.report.written_ms = IN_2100_MS
    document = json.loads(invoke("checkpoint", "--json", "--url", served.url).stdout)
    assert (document["outcome"], document["saved"], document["waits_for"]) == ("written", 3, ["dc2"])
    assert document["error"] is None


def test_checkpoint_of_an_empty_node_has_nothing_to_write(served: ServedNode, invoke: Invoke) -> None:
    served.report.checkpoint = CheckpointStatus()
    assert invoke("checkpoint", "--url", served.url).stdout == "nothing to write yet\n"


def test_failing_object_store_is_reported(served: ServedNode, invoke: Invoke) -> None:
    served.report.checkpoint = CheckpointStatus(error="s3://mail: cannot write it; is the server up?")
    result = invoke("checkpoint", "--url", served.url)
    assert (result.exit_code, "is the server up?" in result.stderr) == (1, True)
