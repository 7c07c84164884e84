from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from trio.testing import MockClock

from protocol.values import Dot
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tasks.routes import LARGE_BODY_BYTES, WAIT_S
from replicator.runtime.environment import run_in_thread
from replicator.tasks import (
    HEADS_MAX,
    PLANNED_MAX,
    ApplyOptions,
    ApplyStatus,
    CheckStatus,
    Difference,
    InventoryOptions,
    InventoryStatus,
    PlannedMailbox,
    ResyncOptions,
    ResyncStatus,
    Undeleted,
    UndeleteOptions,
    UndeleteStatus,
    Undone,
    UnreadableRow,
)
from resync.entry import tree_id
from tests.http.conversation import Answer, Conversation, conversation
from tests.http.fixed_jobs import BRITTLE_RATE, FOUND, FixedJobs, running

T = TypeVar("T")


@pytest.fixture
def jobs() -> FixedJobs:
    return FixedJobs()


@pytest.fixture
async def client(services: HttpServices, jobs: FixedJobs) -> AsyncIterator[Conversation]:
    async with running(jobs.tasks()) as tasks, conversation(HttpServer(replace(services, tasks=tasks))) as talk:
        yield talk


async def ask(client: Conversation, method: str, target: str, body: str = "", kind: str = "application/json") -> Answer:
    about = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n" if method == "POST" else ""
    return await client.ask(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{about}\r\n{body}".encode())


async def test_check_is_started_followed_and_reported(client: Conversation, jobs: FixedJobs) -> None:
    assert (await ask(client, "GET", "/api/v1/check")).status == 404
    begun = await ask(client, "POST", "/api/v1/check", '{"repair": true, "rate": 500}')
    assert (begun.status, begun.json["state"], begun.json["repair"], begun.json["rate"]) == (202, "running", True, 500)
    jobs.end(FOUND)
    told = await ask(client, "GET", "/api/v1/check?wait=true")
    assert (told.status, told.json["state"], told.json["damage"]) == (200, "done", {"by_uid": 1})
    assert (told.json["started_ms"], told.json["ended_ms"]) == (1_000, 1_000)
    assert told.json["findings"] == [
        {
            "kind": "by_uid", "user": "alice", "folder": "INBOX", "uid": 3, "guid": "ab" * 16, "what": "is missing",
            "done": None, "also": [], "more": 0,
        }
    ]  # fmt: skip


async def test_findings_are_listed_only_at_the_end(client: Conversation, jobs: FixedJobs) -> None:
    await ask(client, "POST", "/api/v1/check")
    status = jobs.last.status
    assert isinstance(status, CheckStatus)
    status.findings.append(FOUND)
    assert (await ask(client, "GET", "/api/v1/check")).json["findings"] == []
    jobs.end()
    assert (await ask(client, "GET", "/api/v1/check?wait=true")).json["findings"] != []


async def test_differences_are_listed_only_at_the_end(client: Conversation, jobs: FixedJobs) -> None:
    await ask(client, "POST", "/api/v1/resync")
    status = jobs.last.status
    assert isinstance(status, ResyncStatus)
    status.differences.append(Difference("dc2", "alice", None, {"missing_here": 1}, "adopted here", None))
    assert (await ask(client, "GET", "/api/v1/resync")).json["differences"] == []
    jobs.end()
    assert (await ask(client, "GET", "/api/v1/resync?wait=true")).json["differences"] != []


async def test_failed_task_reports_its_error(client: Conversation, jobs: FixedJobs) -> None:
    await ask(client, "POST", "/api/v1/scrub")
    jobs.end(error="the disk is gone")
    told = await ask(client, "GET", "/api/v1/scrub?wait=true")
    assert (told.json["state"], told.json["error"]) == ("failed", "the disk is gone")
    assert (await ask(client, "POST", "/api/v1/scrub")).status == 202


async def test_by_default_a_scrub_repairs_and_a_check_does_not(client: Conversation, jobs: FixedJobs) -> None:
    assert (await ask(client, "POST", "/api/v1/check")).json["repair"] is False
    jobs.end()
    await ask(client, "GET", "/api/v1/check?wait=true")
    assert (await ask(client, "POST", "/api/v1/scrub", "{}")).json["repair"] is True


@pytest.mark.parametrize("second", ["check", "scrub"])
async def test_only_one_task_runs_at_a_time(client: Conversation, second: str) -> None:
    assert (await ask(client, "POST", "/api/v1/check")).status == 202
    refused = await ask(client, "POST", f"/api/v1/{second}")
    assert (refused.status, "a check is already running here" in str(refused.json["detail"])) == (409, True)


async def test_waiting_for_a_task_ends_after_a_while(
    client: Conversation, jobs: FixedJobs, autojump_clock: MockClock
) -> None:
    await ask(client, "POST", "/api/v1/check")
    before = autojump_clock.current_time()
    assert (await ask(client, "GET", "/api/v1/check?wait=true")).json["state"] == "running"
    assert autojump_clock.current_time() - before == WAIT_S
    assert not jobs.last.ended.is_set()


async def test_cancelled_task_says_so(client: Conversation) -> None:
    assert (await ask(client, "DELETE", "/api/v1/scrub")).status == 404
    await ask(client, "POST", "/api/v1/scrub")
    assert (await ask(client, "DELETE", "/api/v1/scrub")).json["state"] == "cancelled"
    assert (await ask(client, "DELETE", "/api/v1/scrub")).json["state"] == "cancelled"


@pytest.mark.parametrize(
    "body", ["{", "[]", '{"repare": true}', '{"repair": 1}', '{"rate": 0}', '{"rate": true}', '{"rate": 1.5}', "\xff"]
)
async def test_invalid_options_are_refused(client: Conversation, jobs: FixedJobs, body: str) -> None:
    assert (await ask(client, "POST", "/api/v1/check", body)).status == 400
    assert not jobs.started


async def test_options_of_a_resync_are_passed_on(client: Conversation, jobs: FixedJobs) -> None:
    begun = await ask(
        client, "POST", "/api/v1/resync",
        '{"user": "Ann+x@example.org", "mailbox": "Work", "peer": "dc2", "dry_run": true, "rate": 9}',
    )  # fmt: skip
    assert (begun.status, begun.json["task"], begun.json["dry_run"]) == (202, "resync", True)
    assert jobs.last.options == ResyncOptions("ann@example.org", "Work", "dc2", dry_run=True, rate=9)
    jobs.end()
    assert (await ask(client, "GET", "/api/v1/resync?wait=true")).json["state"] == "done"
    await ask(client, "POST", "/api/v1/resync", '{"user": "deleted@example.org", "mailbox": null}')
    assert jobs.last.options == ResyncOptions("deleted@example.org")


async def test_options_of_an_inventory_are_passed_on(client: Conversation, jobs: FixedJobs) -> None:
    begun = await ask(client, "POST", "/api/v1/inventory", '{"to": "/var/mail out/1"}')
    assert (begun.status, begun.json["task"], begun.json["to"]) == (202, "inventory", "/var/mail out/1")
    assert jobs.last.options == InventoryOptions("/var/mail out/1")
    status = jobs.last.status
    assert isinstance(status, InventoryStatus)
    status.unreadable.append(UnreadableRow("guids", "guid 00", "has invalid values in uid"))
    assert (await ask(client, "GET", "/api/v1/inventory")).json["unreadable"] == []
    jobs.end()
    told = await ask(client, "GET", "/api/v1/inventory?wait=true")
    assert told.json["unreadable"] == [{"table": "guids", "key": "guid 00", "what": "has invalid values in uid"}]
    to_s3 = {"to": "s3://mail/a/b", "endpoint": "https://objects.example.org:443", "overwrite": True}
    await ask(client, "POST", "/api/v1/inventory", json.dumps(to_s3))
    assert jobs.last.options == InventoryOptions("s3://mail/a/b", "https://objects.example.org:443", overwrite=True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs a destination"),
        ({"to": "here"}, "absolute path"),
        ({"to": "/a\0b"}, "absolute path"),
        ({"to": "/" + "a" * 5000}, "absolute path"),
        ({"to": "file:///a"}, "absolute path"),
        ({"to": "s3://"}, "s3://bucket/prefix"),
        ({"to": "s3://bucket/../x"}, "s3://bucket/prefix"),
        ({"to": "/a", "endpoint": "https://h:443"}, "leave it out"),
        ({"to": "s3://b/p", "endpoint": "http://objects.example.org:80"}, "expected https"),
        ({"to": "s3://b/p", "overwrite": 1}, "true or false"),
        ({"to": "/a", "rate": 5}, "not an option of this task"),
    ],
)
async def test_invalid_destinations_of_an_inventory_are_refused(
    client: Conversation, jobs: FixedJobs, options: dict[str, object], why: str
) -> None:
    refused = await ask(client, "POST", "/api/v1/inventory", json.dumps(options))
    assert (refused.status, why in str(refused.json["detail"])) == (400, True), refused.json
    assert not jobs.started


@pytest.mark.parametrize(
    "body", ['{"mailbox": "Work"}', '{"user": ""}', '{"user": 7}', '{"dry_run": "yes"}', '{"repair": true}']
)
async def test_invalid_options_of_a_resync_are_refused(client: Conversation, jobs: FixedJobs, body: str) -> None:
    assert (await ask(client, "POST", "/api/v1/resync", body)).status == 400
    assert not jobs.started


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"user": "a" * 70_000}, "1 to 254 bytes"),
        ({"user": "a:b"}, "no colon"),
        ({"user": "\ud800"}, "user contains surrogates"),
        ({"user": "alice", "mailbox": ""}, "mailbox must not be empty"),
        ({"user": "alice", "mailbox": "a//b"}, "no empty levels"),
        ({"user": "alice", "mailbox": "a" * 70_000}, "1000 bytes"),
        ({"user": "alice", "mailbox": "\udfff"}, "mailbox contains surrogates"),
        ({"peer": ""}, "peer must not be empty"),
        ({"peer": "DC2"}, "a node id"),
        ({"peer": "\ud800"}, "peer contains surrogates"),
        ({"peer": "dc1"}, "dc1 is the node itself"),
    ],
)
async def test_invalid_names_are_refused(
    client: Conversation, jobs: FixedJobs, options: dict[str, str], why: str
) -> None:
    refused = await ask(client, "POST", "/api/v1/resync", json.dumps(options))
    assert (refused.status, why in str(refused.json["detail"])) == (400, True)
    assert not jobs.started


async def test_deeply_nested_json_is_refused(client: Conversation, jobs: FixedJobs) -> None:
    refused = await ask(client, "POST", "/api/v1/check", "[" * 50_000)
    assert (refused.status, "nested too deeply" in str(refused.json["detail"])) == (400, True)
    assert not jobs.started


async def test_job_with_a_defect_fails_and_the_next_one_runs(
    client: Conversation, jobs: FixedJobs, caplog: pytest.LogCaptureFixture
) -> None:
    await ask(client, "POST", "/api/v1/check")
    jobs.end(defect=ExceptionGroup("of its nursery", [ValueError("70000 bytes\ud800")]))
    told = await ask(client, "GET", "/api/v1/check?wait=true")
    assert (told.json["state"], "a defect in this program" in str(told.json["error"])) == ("failed", True)
    assert "check failed because of a defect" in caplog.text
    await ask(client, "POST", "/api/v1/scrub")
    jobs.end()
    assert (await ask(client, "GET", "/api/v1/scrub?wait=true")).json["state"] == "done"


async def test_defect_during_cancellation_ends_only_the_task(client: Conversation) -> None:
    await ask(client, "POST", "/api/v1/check", f'{{"rate": {BRITTLE_RATE}}}')
    ended = await ask(client, "DELETE", "/api/v1/check")
    assert (ended.json["state"], "too late" in str(ended.json["error"])) == ("failed", True)
    assert (await ask(client, "POST", "/api/v1/check")).status == 202


async def test_answer_may_contain_lone_surrogates(client: Conversation, jobs: FixedJobs) -> None:
    await ask(client, "POST", "/api/v1/check")
    jobs.end(error="\ud800")
    assert (await ask(client, "GET", "/api/v1/check?wait=true")).json["error"] == "\ud800"
    assert (await ask(client, "DELETE", "/api/v1/check")).json["error"] == "\ud800"


async def test_option_of_another_task_is_refused(client: Conversation, jobs: FixedJobs) -> None:
    refused = await ask(client, "POST", "/api/v1/scrub", '{"repair": false}')
    assert (refused.status, "its options are: rate" in str(refused.json["detail"])) == (400, True)
    assert not jobs.started


async def test_web_page_cannot_start_a_task(client: Conversation, jobs: FixedJobs) -> None:
    assert (await ask(client, "POST", "/api/v1/check", "", "text/plain")).status == 415
    assert not jobs.started


async def test_options_of_an_undelete_are_passed_on(client: Conversation, jobs: FixedJobs) -> None:
    body = '{"user": "Alice", "mailbox": "inbox", "since_ms": 1000, "dry_run": true}'
    begun = await ask(client, "POST", "/api/v1/undelete", body)
    assert (begun.status, jobs.last.options) == (202, UndeleteOptions("alice", "INBOX", 1000, dry_run=True))
    status = jobs.last.status
    assert isinstance(status, UndeleteStatus)
    status.messages.append(Undeleted("ab" * 16, 3, 1, 2, 4, None))
    assert (await ask(client, "GET", "/api/v1/undelete")).json["messages"] == []
    jobs.end()
    told = await ask(client, "GET", "/api/v1/undelete?wait=true")
    assert told.json["messages"] == [
        {"guid": "ab" * 16, "uid": 3, "received_ms": 1, "expunged_ms": 2, "size_bytes": 4, "why_not": None}
    ]
    assert (await ask(client, "DELETE", "/api/v1/undelete")).status == 200


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("{}", "needs a user and a mailbox"),
        ('{"user": "alice"}', "needs a user and a mailbox"),
        ('{"user": "alice", "mailbox": "a//b"}', "empty levels"),
        ('{"user": "alice", "mailbox": "INBOX", "since_ms": -1}', "since_ms"),
        ('{"user": "alice", "mailbox": "INBOX", "since_ms": 281474976710656}', "since_ms"),
        ('{"user": "alice", "mailbox": "INBOX", "since_ms": "3d"}', "since_ms must be a number"),
        ('{"user": "alice", "mailbox": "INBOX", "rate": 1}', "not an option"),
    ],
)
async def test_invalid_options_of_an_undelete_are_refused(
    client: Conversation, jobs: FixedJobs, body: str, what: str
) -> None:
    answer = await ask(client, "POST", "/api/v1/undelete", body)
    assert (answer.status, what in str(answer.json["detail"]), jobs.started) == (400, True, [])


PLANNED: dict[str, object] = {
    "user": "alice", "mailbox": "aB" * 16, "uidvalidity": 7, "damaged": True,
    "heads": {"dc1": ["dc1.1a2b", 17], "dc2": None},
}  # fmt: skip


async def test_options_of_an_apply_are_passed_on(client: Conversation, jobs: FixedJobs) -> None:
    heads = {"dc1": Dot("dc1.1a2b", 17), "dc2": None}
    options = {"mailboxes": [PLANNED], "dry_run": True, "rate": 9, "texts": True}
    begun = await ask(client, "POST", "/api/v1/apply", json.dumps(options))
    assert (begun.status, begun.json["task"], begun.json["dry_run"]) == (202, "apply", True)
    damaged = PlannedMailbox("alice", "ab" * 16, 7, heads, damaged=True)
    assert jobs.last.options == ApplyOptions((damaged,), dry_run=True, rate=9, texts=True)
    status = jobs.last.status
    assert isinstance(status, ApplyStatus)
    status.undone.append(Undone("alice", "INBOX", "ab" * 16, "moved", "has gone on"))
    status.outcomes["moved"] = 1
    told = (await ask(client, "GET", "/api/v1/apply")).json
    assert (told["outcomes"], told["undone"]) == ({"moved": 1}, [])
    jobs.end()
    told = (await ask(client, "GET", "/api/v1/apply?wait=true")).json
    assert told["undone"] == [
        {"user": "alice", "folder": "INBOX", "mailbox": "ab" * 16, "outcome": "moved", "why": "has gone on"}
    ]
    tree = {"user": "bob", "mailbox": tree_id("bob").hex(), "uidvalidity": 0, "heads": PLANNED["heads"]}
    await ask(client, "POST", "/api/v1/apply", json.dumps({"mailboxes": [tree] * PLANNED_MAX}))
    assert jobs.last.options == ApplyOptions((PlannedMailbox("bob", tree_id("bob").hex(), 0, heads),) * PLANNED_MAX)
    jobs.end()
    await ask(client, "GET", "/api/v1/apply?wait=true")
    await ask(client, "POST", "/api/v1/apply", "{}")
    assert jobs.last.options == ApplyOptions(())


async def test_large_plans_are_read_in_threads(services: HttpServices, jobs: FixedJobs) -> None:
    threads: list[int] = []

    async def in_thread(work: Callable[[], T]) -> T:
        def note_and_work() -> T:
            threads.append(threading.get_ident())
            return work()

        return await run_in_thread(note_and_work)

    async with running(jobs.tasks()) as tasks:
        served = replace(services, tasks=tasks, run_in_thread=in_thread)
        async with conversation(HttpServer(served)) as client:
            assert (await ask(client, "POST", "/api/v1/apply", json.dumps({"mailboxes": [PLANNED]}))).status == 202
            assert threads == []
            jobs.end()
            await ask(client, "GET", "/api/v1/apply?wait=true")
            large = json.dumps({"mailboxes": [PLANNED] * PLANNED_MAX})
            assert (await ask(client, "POST", "/api/v1/apply", large)).status == 202
            assert len(threads) == 2
            assert threading.get_ident() not in threads
            jobs.end()
            await ask(client, "GET", "/api/v1/apply?wait=true")
            refused = await ask(client, "POST", "/api/v1/check", "[" * (LARGE_BODY_BYTES + 1))
            assert (refused.status, len(threads)) == (400, 3)


def with_heads(heads: object) -> list[object]:
    return [{**PLANNED, "heads": heads}]


NODES = {f"n{number}": None for number in range(HEADS_MAX // 20)}


@pytest.mark.parametrize(
    ("mailboxes", "why"),
    [
        ({}, "mailboxes must be a list"),
        ([[]], "mailboxes[0]: a planned mailbox must be a JSON object"),
        ([PLANNED, {**PLANNED, "rows": []}], "mailboxes[1]: 'rows' is not a member"),
        ([PLANNED] * (PLANNED_MAX + 1), "send at most 1000 in one request"),
        ([{**PLANNED, "heads": NODES}] * 21, "more than 10000 heads"),
        ([{**PLANNED, "user": 7}], "user must be a string"),
        ([{**PLANNED, "user": "a:b"}], "no colon"),
        ([{**PLANNED, "user": "\ud800"}], "mailboxes[0]: "),
        ([{**PLANNED, "mailbox": "ab" * 15}], "an id of 16 bytes"),
        ([{**PLANNED, "mailbox": "zz" * 16}], "an id of 16 bytes"),
        ([{**PLANNED, "mailbox": None}], "an id of 16 bytes"),
        ([{**PLANNED, "uidvalidity": -1}], "uidvalidity must be a number from 0"),
        ([{**PLANNED, "uidvalidity": 1 << 32}], "uidvalidity must be a number from 0"),
        ([{**PLANNED, "uidvalidity": True}], "uidvalidity must be a number from 0"),
        ([{**PLANNED, "uidvalidity": 0}], "not the id of that user's folder tree"),
        ([{**PLANNED, "damaged": 1}], "damaged must be true or false"),
        (with_heads(None), "heads must be an object with two or more nodes"),
        (with_heads({"dc1": None}), "heads must be an object with two or more nodes"),
        (with_heads({"dc1": None, "DC2": None}), "a node id"),
        (with_heads({"dc1": None, "dc2": "dc2.a 7"}), "a head must be null or [origin, seq]"),
        (with_heads({"dc1": None, "dc2": ["dc2.a", 0]}), "a head must be null or [origin, seq]"),
        (with_heads({"dc1": None, "dc2": ["dc2.a", True]}), "a head must be null or [origin, seq]"),
        (with_heads({"dc1": None, "dc2": ["dc2.a", 1 << 63]}), "a head must be null or [origin, seq]"),
        (with_heads({"dc1": None, "dc2": ["dc2." + "a" * 100, 1]}), "a head must be null or [origin, seq]"),
        (with_heads({"dc1": None, "dc2": ["dc2.a", 1, 2]}), "a head must be null or [origin, seq]"),
        (with_heads({"dc1": None, "dc2": ["origin", 1]}), "a node id"),
    ],
)
async def test_invalid_planned_mailboxes_are_refused(
    client: Conversation, jobs: FixedJobs, mailboxes: object, why: str
) -> None:
    refused = await ask(client, "POST", "/api/v1/apply", json.dumps({"mailboxes": mailboxes}))
    assert (refused.status, why in str(refused.json["detail"])) == (400, True), refused.json
    assert not jobs.started


async def test_rate_of_an_apply_counts_mailboxes(client: Conversation, jobs: FixedJobs) -> None:
    refused = await ask(client, "POST", "/api/v1/apply", '{"rate": 0}')
    assert (refused.status, "mailboxes per second" in str(refused.json["detail"])) == (400, True)
    assert not jobs.started
