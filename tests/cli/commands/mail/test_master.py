from __future__ import annotations

import json

from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode


def test_the_master_is_shown_and_moved(served: ServedNode, invoke: Invoke) -> None:
    assert invoke("master", "show", "alice", "INBOX", "--url", served.url).stdout == "dc1\n"
    moved = invoke("master", "move", "alice", "INBOX", "dc2", "--url", served.url)
    assert (moved.exit_code, moved.stdout) == (0, "dc2 is now the master of alice's INBOX\n")
    shown = invoke("master", "show", "alice", "INBOX", "--url", served.url, "--json")
    assert json.loads(shown.stdout) == {"master": "dc2"}
    again = invoke("master", "move", "alice", "INBOX", "dc1", "--url", served.url, "--json")
    assert json.loads(again.stdout) == {"master": "dc1"}


def test_unknown_master_is_shown_as_unknown(served: ServedNode, invoke: Invoke) -> None:
    served.report.master = None
    assert "does not know the master yet" in invoke("master", "show", "alice", "INBOX", "--url", served.url).stdout


def test_refused_move_of_a_master_is_reported(served: ServedNode, invoke: Invoke) -> None:
    unreachable = invoke("master", "move", "alice", "INBOX", "dc3", "--url", served.url)
    assert (unreachable.exit_code, "dc3 cannot be reached" in unreachable.stderr) == (1, True)
    unknown = invoke("master", "move", "alice", "INBOX", "dc9", "--url", served.url)
    assert (unknown.exit_code, "no node 'dc9' is configured at dc1" in unknown.stderr) == (1, True)
    nobody = invoke("master", "show", "nobody", "INBOX", "--url", served.url)
    assert (nobody.exit_code, "no user 'nobody'" in nobody.stderr) == (1, True)
    nowhere = invoke("master", "show", "alice", "Nowhere", "--url", served.url)
    assert (nowhere.exit_code, "Nowhere" in nowhere.stderr) == (1, True)
