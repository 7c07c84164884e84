"""The nodes of a cluster as child processes of this one.

Each child has its own process group, so that Ctrl-C reaches only this process, which then ends the children in order.
Each has a pipe as its standard input, which closes when this process ends in any way, so that no child outlives it.
Children are not restarted: the output says which one ended and how to start it, and the others continue.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import trio

from protocol.units import KIB
from replicator.cli.output import own_name
from replicator.cli.processes.cluster_files import ClusterNode

STOP_S = 20.0  # a stopping node closes its database; after this time it is killed, and recovers at its next start
READY_LINE = b"ready"
LINE_BYTES_MAX = 64 * KIB  # of a child's output; longer lines are split
RECEIVE_BYTES = 64 * KIB
SAME_SIGNAL_S = 1.0  # one Ctrl-C reaches us from the terminal, and again from `make`, which passes it on
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OUTLIVING = (signal.SIGHUP, signal.SIG_IGN)

Say = Callable[[str, str], None]
"""Called with a node's id and a line about it."""


class NodeProcess:
    """One child. `started` is set once it is ready or has ended."""

    def __init__(self, node: ClusterNode, options: Sequence[str], say: Say) -> None:
        self.sid = node.sid
        self.is_ready = False
        self._is_asked_to_end = False
        self._restart = f"{own_name()} node --config {shlex.quote(str(node.file))}"
        self.started = trio.Event()
        command = [sys.executable, "-m", "replicator", "node", "--until-stdin-closes", "--config", str(node.file)]
        self._command = [*command, *options]
        self._say = say
        self._process: trio.Process | None = None

    @property
    def pid(self) -> int | None:
        """Process number, while the child runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Start the child, pass its output on, and return when it has ended. Do not cancel this: call `end`."""
        pipe = subprocess.PIPE
        process = await trio.lowlevel.open_process(self._command, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0)
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_each_line, process.stdout, self._note_output)
            nursery.start_soon(_each_line, process.stderr, self._note_log)
        code = await process.wait()
        self.is_ready = False
        if self._is_asked_to_end:
            self._say_event("INFO", f"the node has stopped, {'as requested' if code == 0 else _describe(code)}")
        else:
            self._say_event("WARNING", f"the node has stopped, {_describe(code)}; start it again with: {self._restart}")
        self.started.set()

    def end(self) -> None:
        """Ask the child to end."""
        self._is_asked_to_end = True
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    def kill(self, reason: str) -> None:
        """Kill the child, unless it has ended."""
        if self._process is not None and self._process.returncode is None:
            self._say_event("WARNING", f"{reason}: killing the node, which recovers at its next start")
            self._process.kill()

    def _say_event(self, level: str, text: str) -> None:
        """Print an event in the format of a node's log."""
        self._say(self.sid, f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {level} {__name__}: {text}")

    def _note_output(self, line: bytes) -> None:
        if line == READY_LINE:
            self.is_ready = True
            self.started.set()
        else:
            self._note_log(line)

    def _note_log(self, line: bytes) -> None:
        self._say(self.sid, line.decode("utf-8", "replace"))


async def run_processes(
    nodes: Sequence[ClusterNode],
    options: Sequence[str] = (),
    *,
    say: Say,
    started: Callable[[Sequence[NodeProcess]], None],
    ending: Callable[[], None],
) -> bool:
    """Run all nodes, with these options, until SIGINT, SIGTERM or SIGHUP, or until all have ended by themselves.

    A SIGHUP that was ignored before stays ignored. `started` is called once every node is ready or has ended, `ending`
    at the first signal; a later signal kills. Returns True if a signal ended the cluster.
    """
    children = [NodeProcess(node, options, say) for node in nodes]
    stopped = False

    async def stop_on_signal(task_status: trio.TaskStatus[None]) -> None:
        nonlocal stopped
        first_s = 0.0
        # A cluster started under nohup must outlive the terminal.
        heeded = [number for number in STOP_SIGNALS if (number, signal.getsignal(number)) != OUTLIVING]
        with trio.open_signal_receiver(*heeded) as signals:
            task_status.started()
            async for _ in signals:
                if not stopped:
                    stopped, first_s = True, trio.current_time()
                    ending()
                    nursery.start_soon(_stop, children)
                elif trio.current_time() - first_s > SAME_SIGNAL_S:
                    for child in children:
                        child.kill("asked to stop a second time")

    async def announce() -> None:
        for child in children:
            await child.started.wait()
        if not stopped and any(child.is_ready for child in children):
            started(children)

    async with trio.open_nursery() as nursery:
        await nursery.start(stop_on_signal)
        nursery.start_soon(announce)
        async with trio.open_nursery() as running:
            for child in children:
                running.start_soon(child.run)
        nursery.cancel_scope.cancel()
    return stopped


async def _stop(children: Sequence[NodeProcess]) -> None:
    for child in children:
        child.end()
    await trio.sleep(STOP_S)
    for child in children:
        child.kill(f"not stopped within {STOP_S:.0f} s")


async def _each_line(stream: trio.abc.ReceiveStream, note: Callable[[bytes], None]) -> None:
    """Call `note` with every line, without its line end."""
    buffer = b""
    while chunk := await stream.receive_some(RECEIVE_BYTES):
        *lines, buffer = (buffer + chunk).split(b"\n")
        if len(buffer) > LINE_BYTES_MAX:
            lines.append(buffer)
            buffer = b""
        for line in lines:
            note(line.rstrip(b"\r"))
    if buffer:
        note(buffer)


def _describe(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
