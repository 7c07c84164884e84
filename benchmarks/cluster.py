"""Three node processes on loopback, under one directory; started, asked and ended by what the command line promises."""

from __future__ import annotations

import http.client
import json
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import psutil

from benchmarks.wire import Address, ImapClient, MeasurementError

HOST = "127.0.0.1"
DOORS = ("peer", "imap", "lmtp", "http")
PASSWORD = "bench"
END_WITHIN_S = 30.0


@dataclass(frozen=True)
class NodeUsage:
    rss_bytes: int
    cpu_s: float
    written_bytes: int


class Node:
    """One node. `prefix` stands before its command line; `profile` takes cProfile's statistics of it."""

    def __init__(self, sid: str, directory: Path, ports: Mapping[str, int], prefix: str, profile: Path | None) -> None:
        self.sid = sid
        self.ports = ports
        self._directory = directory
        interpreter = [sys.executable, *(["-m", "cProfile", "-o", str(profile)] if profile else [])]
        config = str(directory / f"{sid}.toml")
        self._command = [*shlex.split(prefix), *interpreter, "-m", "replicator", "node", "--config", config]
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, door: str) -> Address:
        return Address(HOST, self.ports[door])

    def imap(self, user: str) -> ImapClient:
        return ImapClient(self.address("imap"), user, PASSWORD)

    def start(self) -> None:
        """Returns when the node says that it is ready."""
        with (self._directory / f"{self.sid}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--log-level", "warning"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != b"ready":
            raise MeasurementError(f"{self.sid} does not start:\n{self.log_tail()}")

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for one that does not heed it."""
        if self._process is None:
            return
        process, self._process = self._process, None
        with process:
            for child in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                child.send_signal(signal.SIGTERM)
            try:
                process.wait(END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def log_tail(self) -> str:
        log = (self._directory / f"{self.sid}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(log.splitlines()[-20:])

    def usage(self) -> NodeUsage:
        process = self._node_process()
        cpu = process.cpu_times()
        return NodeUsage(process.memory_info().rss, cpu.user + cpu.system, process.io_counters().write_bytes)

    def get(self, path: str) -> dict[str, object]:
        """What the HTTP door answers."""
        connection = http.client.HTTPConnection(HOST, self.ports["http"], timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise MeasurementError(f"{self.sid} answers {path} with {response.status}: {body[:200]!r}")
        return cast("dict[str, object]", json.loads(body))

    def _node_process(self) -> psutil.Process:
        """The node itself, behind whatever the prefix runs."""
        assert self._process is not None
        process = psutil.Process(self._process.pid)
        children = process.children()
        return children[0] if children else process


class Cluster:
    """dc1, dc2 and dc3 with the given users. Leaving the `with` block ends them."""

    def __init__(self, directory: Path, users: Sequence[str], prefix: str, profile: Mapping[str, Path]) -> None:
        sids = ("dc1", "dc2", "dc3")
        ports = _free_ports(len(sids) * len(DOORS))
        taken = {sid: dict(zip(DOORS, ports[at * len(DOORS) :], strict=False)) for at, sid in enumerate(sids)}
        directory.mkdir(parents=True)
        passwords = "".join(f"{user}:{{PLAIN}}{PASSWORD}\n" for user in users)
        (directory / "users.passwd").write_text(passwords, encoding="utf-8")
        for sid in sids:
            (directory / f"{sid}.toml").write_text(_config(sid, taken), encoding="utf-8")
        self.directory = directory
        self.nodes = [Node(sid, directory, taken[sid], prefix.replace("{sid}", sid), profile.get(sid)) for sid in sids]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.stop)
                node.start()
            self._stack = stack.pop_all()
        self.wait_until(lambda statuses: all(len(_sids(status)) == len(self.nodes) for status in statuses), 30.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def wait_until_equal(self, within_s: float = 120.0) -> float:
        """Seconds until all nodes have the same digest."""
        began = time.perf_counter()
        self.wait_until(lambda statuses: len({status["digest"] for status in statuses}) == 1, within_s)
        return time.perf_counter() - began

    def wait_until(self, true_of: Callable[[list[dict[str, object]]], bool], within_s: float) -> None:
        """Poll the nodes' statuses."""
        deadline = time.monotonic() + within_s
        while not true_of(statuses := [node.get("/api/v1/status") for node in self.nodes]):
            if time.monotonic() > deadline:
                raise MeasurementError(f"the nodes do not come together in {within_s:.0f} s: {statuses}")
            time.sleep(0.05)

    def usage(self) -> dict[str, NodeUsage]:
        return {node.sid: node.usage() for node in self.nodes}


def _sids(status: Mapping[str, object]) -> list[str]:
    return cast("list[str]", status["component"])


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(server.getsockname()[1]) for server in sockets]


def _config(sid: str, ports: Mapping[str, Mapping[str, int]]) -> str:
    listen = "".join(f'{door} = "{HOST}:{ports[sid][door]}"\n' for door in DOORS)
    peers = "".join(
        f'[[peer]]\nid = "{peer}"\naddress = "{HOST}:{ports[peer]["peer"]}"\n' for peer in ports if peer != sid
    )
    return f'[node]\nid = "{sid}"\n[listen]\n{listen}{peers}[users]\npasswd_file = "users.passwd"\n'
