"""`replicator inventory`: writes this node's state at one moment as Parquet, in a process of its own.

The process belongs to this node: if the task is cancelled or the node stops, in whatever way, the process removes what
it wrote and exits; it is killed if that takes long. It reads the database by itself; this node only tells it the
masters of mailboxes.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import aclosing

import trio

from replicator.replication import timing
from replicator.replication.coordinator import Coordinator
from replicator.replication.tasks.runner import TaskError
from replicator.runtime.process.own_program import command_of, environment
from replicator.store.db.queries import MailboxKey
from replicator.store.inventory.conversation import (
    KEEP,
    LINE_BYTES_MAX,
    REMOVAL_S,
    Begun,
    Done,
    Event,
    Failed,
    Heads,
    LeftOut,
    MailboxName,
    Order,
    Read,
    Unreadable,
    event_of,
    line_of,
    masters_line,
)
from replicator.store.store import Store
from replicator.tasks import InventoryOptions, InventoryStatus, UnreadableRow

COMMAND = command_of("replicator.store.inventory")
ERRORS_BYTES = 2000  # bytes kept of the process's last error output, for an exit by a defect


class InventoryTask:
    """The job of `replicator inventory`. See `Job`."""

    def __init__(self, options: InventoryOptions, store: Store, coordinator: Coordinator) -> None:
        self.status = InventoryStatus(task="inventory", rate=None, to=options.to)
        config = coordinator.config
        self._mastership = coordinator.mastership
        self._order = Order(
            database=str(store.path.absolute()),
            to=options.to,
            endpoint=options.endpoint or config.checkpoint.endpoint,
            scratch=str(store.path.parent.absolute()),
            overwrite=options.overwrite,
            cluster=config.node.cluster,
            node=config.node.id,
            origin=store.origin,
        )

    async def run(self) -> None:
        """Have the inventory written. Raises TaskError; there is an inventory only if this returns without an error."""
        process = await _started()
        said = bytearray()
        why: str | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_keep_last, process, said)
                why = await self._converse(process, nursery.cancel_scope)
        finally:
            with trio.CancelScope(shield=True):
                await _end(process)
        if self.status.taken_ms is None:
            raise TaskError(why or _ended(process, said, self.status.to))

    async def _converse(self, process: trio.Process, scope: trio.CancelScope) -> str | None:
        """Talk to the process until it closes its output; return why it failed, if it says so.

        Once the process reports that it is done, the task can no longer be cancelled.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        why: str | None = None
        try:
            await process.stdin.send_all(line_of(self._order))
            async with aclosing(_lines(process.stdout)) as lines:
                async for line in lines:
                    event = event_of(line)
                    if isinstance(event, Heads):
                        await process.stdin.send_all(masters_line([self._master_of(name) for name in event.names()]))
                    elif isinstance(event, Failed):
                        why = event.why
                    else:
                        self._note(event)
                    if isinstance(event, Done):
                        scope.shield, scope.deadline = True, trio.current_time() + timing.INVENTORY_KILLED_S
                        with trio.CancelScope(shield=True):
                            await process.stdin.send_all(KEEP)
        except trio.BrokenResourceError:  # the process exited without a message
            return why
        return why

    def _master_of(self, name: MailboxName) -> str | None:
        return self._mastership.known_master(MailboxKey(*name))

    def _note(self, event: Event) -> None:
        status = self.status
        match event:
            case Begun(rows):
                status.total = rows
            case Read(table, rows):
                status.rows[table] = status.rows.get(table, 0) + rows
                status.count(rows)
            case Unreadable(table, key, what):
                status.damage[table] = status.damage.get(table, 0) + 1
                status.unreadable.append(UnreadableRow(table, key, what))
            case LeftOut(table, rows):
                status.damage[table] = status.damage.get(table, 0) + rows
                status.left_out += rows
            case Done(files, size_bytes, taken_ms):
                status.files, status.size_bytes, status.taken_ms = files, size_bytes, taken_ms
                status.rows = {table: rows - status.damage.get(table, 0) for table, rows in status.rows.items()}
                status.total = status.done
            case _:
                raise AssertionError(f"{event!r} is not for the status")


async def _started() -> trio.Process:
    pipe = subprocess.PIPE
    try:
        return await trio.lowlevel.open_process(COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, env=environment())
    except OSError as error:
        raise TaskError(
            f"cannot start the process that writes the inventory: {error}; free memory, processes and open files on"
            " the node's machine, or raise the node's limits; then try again"
        ) from error


async def _end(process: trio.Process) -> None:
    """Wait for the process to exit by itself, then kill it."""
    assert process.stdin is not None
    await process.stdin.aclose()
    with trio.move_on_after(REMOVAL_S):
        await process.wait()
    process.kill()
    with trio.move_on_after(timing.INVENTORY_KILLED_S):
        await process.wait()
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        await stream.aclose()


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncGenerator[bytes, None]:
    """Yield complete lines. Raises ValueError for a line that is too long."""
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError(f"a line of more than {LINE_BYTES_MAX} bytes")


async def _keep_last(process: trio.Process, said: bytearray) -> None:
    assert process.stderr is not None
    async for chunk in process.stderr:
        said += chunk
        del said[:-ERRORS_BYTES]


def _ended(process: trio.Process, said: bytearray, to: str) -> str:
    """Explain a missing inventory if the process gave no reason."""
    code = process.returncode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    left = f"; the incomplete inventory stays in {to}: start again with `--overwrite`" if code < 0 else ""
    return (
        f"the process that writes the inventory {how}"
        + (f": {last}" if last else "; is there enough memory for it?")
        + left
    )
