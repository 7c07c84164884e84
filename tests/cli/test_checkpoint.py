import json
from dataclasses import replace

from replicator.status import CheckpointStatus
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode


def test_what_was_written_and_whom_the_log_waits_for(served: ServedNode, invoke: Invoke) -> None:
    result = invoke("checkpoint", "--url", served.url)
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        [
            "3 checkpoints written, 2 KiB",
            "the manifest of 1970-01-01 00:01:20 UTC lists 4 mailboxes and trees",
            "the log before it is kept until dc2 can do without",
        ],
    )
    served.report.checkpoint = replace(served.report.checkpoint, in_force=True, waits_for=())
    assert "it is in force" in invoke("checkpoint", "--url", served.url).stdout


def test_as_json(served: ServedNode, invoke: Invoke) -> None:
    document = json.loads(invoke("checkpoint", "--json", "--url", served.url).stdout)
    assert (document["saved"], document["waits_for"], document["error"]) == (3, ["dc2"], None)


def test_there_is_nothing_yet(served: ServedNode, invoke: Invoke) -> None:
    served.report.checkpoint = CheckpointStatus()
    assert invoke("checkpoint", "--url", served.url).stdout == "nothing to write yet\n"


def test_a_store_that_fails(served: ServedNode, invoke: Invoke) -> None:
    served.report.checkpoint = CheckpointStatus(error="s3://mail: cannot write it; is the server up?")
    result = invoke("checkpoint", "--url", served.url)
    assert (result.exit_code, "is the server up?" in result.stderr) == (1, True)
