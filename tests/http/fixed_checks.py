"""Checks that end when the test says so."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import trio

from replicator.status import CheckStatus, Finding, TaskName

FOUND = Finding("by_uid", "alice", "INBOX", 3, "ab" * 16, "is missing", None)
BEGUN = CheckStatus(
    task="check", state="running", repair=False, rate=None, started_ms=1_000, ended_ms=None, done=5, total=20,
    mailboxes=1, rows=5, contents=0, damage={}, repaired=0, unrepaired=0, findings=(), left_out=0, error=None,
)  # fmt: skip


@dataclass
class FixedChecks:
    tasks: dict[TaskName, CheckStatus] = field(default_factory=dict)
    ended: trio.Event = field(default_factory=trio.Event)

    def start(self, name: TaskName, *, repair: bool, rate: int | None) -> CheckStatus | None:
        if any(task.is_running for task in self.tasks.values()):
            return None
        self.tasks[name] = replace(BEGUN, task=name, repair=repair, rate=rate)
        return self.tasks[name]

    def status(self, name: TaskName) -> CheckStatus | None:
        return self.tasks.get(name)

    async def wait(self, name: TaskName) -> None:
        if name in self.tasks:
            await self.ended.wait()

    def cancel(self, name: TaskName) -> None:
        self.end(name, "cancelled")

    def end(self, name: TaskName, state: str, *findings: Finding) -> None:
        if name in self.tasks:
            self.tasks[name] = replace(
                self.tasks[name], state=state, ended_ms=2_000, damage={"by_uid": len(findings)}, findings=findings,
                unrepaired=len(findings),
            )  # fmt: skip
        self.ended.set()
