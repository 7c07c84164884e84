from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging, os, resource, socket, trio
from replicator.runtime.logs.lines import LogFormat, LogSettings, log_to_stderr

async def serve(stream):
    await trio.sleep_forever()

async def main():
    log_to_stderr(LogSettings.of("info", LogFormat("text")))
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listener.socket.getsockname()
    clients = [socket.create_connection(address) for _ in range(8)]
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, used + 2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        with trio.move_on_after(1):
            await trio.sleep_forever()
        nursery.cancel_scope.cancel()

trio.run(main)
"""


def test_too_few_descriptors_are_told_once_with_what_to_do() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True, timeout=60)
    [line] = done.stderr.splitlines()
    assert "ERROR trio.serve_listeners: new connections wait: Too many open files; raise the process's limit" in line
