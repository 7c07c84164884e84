"""`replicator auth test` and `replicator penalty`, asked of a node over HTTP."""

from __future__ import annotations

import json
from functools import partial

import trio

from replicator.users import add_user, parse_nets, set_disabled
from replicator.users.attempts.throttle import FREE_FAILURES_PAIR
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode


def fail(served: ServedNode, user: str, times: int) -> None:
    attempt = partial(served.users.verify, user, "wrong", address="192.0.2.1")
    for _ in range(times):
        trio.from_thread.run(attempt, trio_token=served.token)


def test_a_log_in_is_tried(served: ServedNode, invoke: Invoke) -> None:
    add_user(served.users_file, "alice", "secret", scheme="PLAIN")
    right = invoke("auth", "test", "Alice@example.org", "--url", served.url, typed="secret\n")
    origin = f"alice comes from {served.users_file}\n"
    assert (right.exit_code, right.stdout) == (0, f"Alice@example.org may log in, as alice\n{origin}")
    wrong = invoke("auth", "test", "alice", "--password-stdin", "--url", served.url, typed="hunter2\n")
    assert (wrong.exit_code, wrong.stdout) == (1, f"alice may not log in: the password is wrong\n{origin}")
    set_disabled(served.users_file, "alice", disabled=True)
    result = invoke("auth", "test", "alice", "--json", "--url", served.url, typed="secret\n")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["user"], document["waits_s"], document["slowed"]) == (1, "alice", 0, [])
    assert [reason["obstacle"] for reason in document["reasons"]] == ["disabled"]


def test_a_log_in_is_tried_for_an_address(served: ServedNode, invoke: Invoke) -> None:
    add_user(served.users_file, "alice", "secret", scheme="PLAIN", nets=parse_nets("192.0.2.0/24,::1"))

    def told(*options: str) -> tuple[int, str]:
        result = invoke("auth", "test", "alice", *options, "--url", served.url, typed="secret\n")
        return result.exit_code, result.stdout.removesuffix(f"alice comes from {served.users_file}\n")

    assert told() == told("--address", "192.0.2.7") == (0, "alice may log in, from 192.0.2.0/24, ::1 only\n")
    refused = "alice may not log in: alice may log in from 192.0.2.0/24,::1 only, and not from 192.0.3.7\n"
    assert told("--address", "192.0.3.7") == (1, refused)
    assert told("--address", "example.org")[0] == 2


def test_penalties_are_listed_and_end(served: ServedNode, invoke: Invoke) -> None:
    add_user(served.users_file, "alice", "secret", scheme="PLAIN")
    fail(served, "alice", FREE_FAILURES_PAIR + 1)
    tried = invoke("auth", "test", "alice", "--url", served.url, typed="secret\n")
    assert tried.exit_code == 0
    [found] = json.loads(invoke("penalty", "list", "--json", "--url", served.url).stdout)
    assert (found["user"], found["address"], found["failures"]) == ("alice", "192.0.2.1", FREE_FAILURES_PAIR + 1)
    shown = " ".join(invoke("penalty", "list", "--url", served.url).stdout.split())
    assert f"alice 192.0.2.1 {FREE_FAILURES_PAIR + 1} " in shown
    assert invoke("penalty", "clear", "bob", "--url", served.url).stdout == "0 penalties ended\n"
    assert json.loads(invoke("penalty", "clear", "alice", "--json", "--url", served.url).stdout) == {"ended": 1}
    assert json.loads(invoke("penalty", "list", "--json", "--url", served.url).stdout) == []
    fail(served, "alice", FREE_FAILURES_PAIR + 1)
    assert invoke("penalty", "clear", "--url", served.url).stdout == "1 penalty ended\n"


def test_usage(served: ServedNode, invoke: Invoke) -> None:
    assert invoke("auth", "test", "alice", typed="x\n").exit_code == 2
    assert invoke("auth", "test", "", "--url", served.url, typed="x\n").exit_code == 2
    empty = invoke("auth", "test", "alice", "--url", served.url)
    assert (empty.exit_code, "no password" in empty.stderr) == (1, True)
    unknown = invoke("auth", "test", "alice", "--url", served.url, typed="x\n")
    assert (unknown.exit_code, "cannot be read now" in unknown.stderr) == (1, True)
