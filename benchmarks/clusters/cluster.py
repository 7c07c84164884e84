"""Node processes on this machine, under one directory; started, queried and ended as the command line documents it.

Lines between them can be degraded (`Cluster.link`), and nodes can be killed, paused and restarted.
"""

from __future__ import annotations

import http.client
import json
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import psutil

from benchmarks.clients.wire import Address, ImapClient, MeasurementError
from benchmarks.clusters.proxy import HOST, Direction, Proxy

DOORS = ("peer", "imap", "lmtp", "http")
PASSWORD = "bench"
END_WITHIN_S = 30.0
TOGETHER_WITHIN_S = 300.0
LOG_ENDS = '[log]\nkeep = "0s"\n'
"""Configuration: each checkpoint ends the log, whichever node still needs it."""

OBJECTS_OF = "{sid}-objects"
OWN_OBJECTS = f'[checkpoint]\nurl = "file:{OBJECTS_OF}"\n'
"""Configuration: a node has its own object store. Otherwise all nodes of a cluster here would share one directory."""

HTTP_TIMEOUT_S = 70.0
"""Seconds: a move of mastership may take 30 s, and a checkpoint is awaited for 60 s."""


class UnansweredError(MeasurementError):
    """The node asks to be asked again later."""


@dataclass(frozen=True)
class NodeUsage:
    rss_bytes: int
    cpu_s: float
    written_bytes: int


@dataclass(frozen=True)
class Site:
    """A node's environment: the prefix of its command, the address where peers find it, and additional configuration.

    Its other doors are on loopback; `enter` is the context from which they can be reached.
    """

    prefix: str = ""
    host: str = HOST
    extra: str = ""
    enter: Callable[[], AbstractContextManager[None]] = nullcontext


class Node:
    """One node. `profile`: file for cProfile's statistics of it."""

    def __init__(self, sid: str, directory: Path, ports: Mapping[str, int], site: Site, profile: Path | None) -> None:
        self.sid = sid
        self.ports = ports
        self.site = site
        self._directory = directory
        interpreter = [sys.executable, *(["-m", "cProfile", "-o", str(profile)] if profile else [])]
        config = str(directory / f"{sid}.toml")
        self._command = [*shlex.split(site.prefix), *interpreter, "-m", "replicator", "node", "--config", config]
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, door: str) -> Address:
        return Address(HOST, self.ports[door])

    def imap(self, user: str) -> ImapClient:
        with self.site.enter():
            return ImapClient(self.address("imap"), user, PASSWORD)

    # ---- the process

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        """Process id of the node itself, behind the command that the prefix runs."""
        return self._node_process().pid

    @property
    def data(self) -> Path:
        """The node's data directory."""
        return self._directory / self.sid

    def start(self) -> None:
        """Start the node and return when it reports that it is ready."""
        self.launch()
        self.wait_ready()

    def launch(self, *options: str) -> None:
        with (self._directory / f"{self.sid}.log").open("ab") as log:
            command = [*self._command, "--log-level", "warning", *options]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def wait_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != b"ready":
            self.kill()
            raise MeasurementError(f"{self.sid} does not start:\n{self.log_tail()}")

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the node does not end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL: the node has no chance to finish anything."""
        self._end(signal.SIGKILL)

    def wait_ended(self) -> int:
        """Wait until the node ends by itself and return its exit code. Raises TimeoutExpired."""
        assert self._process is not None
        code = self._process.wait(END_WITHIN_S)
        process, self._process = self._process, None
        with process:
            return code

    def pause(self) -> None:
        """Send SIGSTOP: the node keeps its connections and does nothing, until `resume`."""
        self._node_process().suspend()

    def resume(self) -> None:
        self._node_process().resume()

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        with process:
            for child in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                with suppress(psutil.NoSuchProcess):  # a door that is replaced ends by itself
                    child.resume()  # a paused process could not handle SIGTERM
                    child.send_signal(number)
            try:
                process.wait(END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def _node_process(self) -> psutil.Process:
        """Return the node's own process, behind the command that the prefix runs."""
        assert self._process is not None
        process = psutil.Process(self._process.pid)
        children = process.children() if self.site.prefix else []  # else those are the node's
        return children[0] if children else process

    # ---- what it says

    def log_tail(self) -> str:
        log = (self._directory / f"{self.sid}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(log.splitlines()[-20:])

    def usage(self) -> NodeUsage:
        process = self._node_process()
        cpu = process.cpu_times()
        return NodeUsage(process.memory_info().rss, cpu.user + cpu.system, process.io_counters().write_bytes)

    def get(self, path: str) -> dict[str, object]:
        """Return the HTTP door's answer."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, options: Mapping[str, object] | None = None) -> dict[str, object]:
        """Return the HTTP door's answer. Raises MeasurementError for anything but success."""
        connection = http.client.HTTPConnection(HOST, self.ports["http"], timeout=HTTP_TIMEOUT_S)
        body = None if options is None else json.dumps(options)
        headers = {} if options is None else {"Content-Type": "application/json"}
        try:
            with self.site.enter():
                connection.connect()
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status == http.client.SERVICE_UNAVAILABLE:
            raise UnansweredError(f"{self.sid} does not answer {method} {path}: {answer[:200]!r}")
        if response.status not in {http.client.OK, http.client.ACCEPTED}:
            raise MeasurementError(f"{self.sid} answers {method} {path} with {response.status}: {answer[:200]!r}")
        return cast("dict[str, object]", json.loads(answer))


class Cluster:
    """Nodes dc1, dc2, ... with the given users. Leaving the `with` block ends them.

    `prefix` is put before each node's command, with {sid} replaced. `proxied`: every link goes through a proxy of its
    own. `extra` is appended to every configuration. `late`: SIDs of nodes that the caller starts later; the others
    begin the cluster without them. `more_doors`: keys of [listen] besides `DOORS`.
    """

    def __init__(
        self,
        directory: Path,
        users: Sequence[str],
        prefix: str = "",
        profile: Mapping[str, Path] | None = None,
        *,
        size: int = 3,
        proxied: bool = False,
        copies: int = 2,
        when_short: str = "proceed",
        extra: str = "",
        sites: Mapping[str, Site] | None = None,
        late: Collection[str] = (),
        more_doors: Sequence[str] = (),
    ) -> None:
        sids = [f"dc{number + 1}" for number in range(size)]
        sites = sites or {sid: Site(prefix.replace("{sid}", sid)) for sid in sids}
        doors = (*DOORS, *more_doors)
        self._reserved = reserve_ports(size * len(doors))
        ports = [int(reserved.getsockname()[1]) for reserved in self._reserved]
        taken = {sid: dict(zip(doors, ports[at * len(doors) :], strict=False)) for at, sid in enumerate(sids)}
        directory.mkdir(parents=True, exist_ok=True)
        passwords = "".join(f"{user}:{{PLAIN}}{PASSWORD}\n" for user in users)
        (directory / "users.passwd").write_text(passwords, encoding="utf-8")
        self.directory = directory
        self.nodes = [Node(sid, directory, taken[sid], sites[sid], (profile or {}).get(sid)) for sid in sids]
        self._proxied = proxied
        self._links: dict[tuple[str, str], Proxy] = {}
        self._durability = f'[durability]\ncopies = {copies}\nwhen_short = "{when_short}"\n'
        self._extra = extra
        self._late = late
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for reserved in self._reserved:
                stack.enter_context(reserved)
            if self._proxied:
                for near, far in combinations(self.nodes, 2):
                    proxy = stack.enter_context(Proxy(Address(far.site.host, far.ports["peer"])))
                    self._links[near.sid, far.sid] = proxy
            for node in self.nodes:
                (self.directory / f"{node.sid}.toml").write_text(self._config(node), encoding="utf-8")
                stack.callback(node.stop)
                if node.sid not in self._late:
                    node.launch(*(["--new-cluster"] if self._late else []))
            for node in self.running:
                node.wait_ready()
            self.wait_together()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def node(self, sid: str) -> Node:
        return next(node for node in self.nodes if node.sid == sid)

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.is_running]

    # ---- bad lines: of a cluster that is `proxied`

    def link(self, one: str, other: str) -> Proxy:
        """Return the line between two nodes; the one with the lower SID is the near end."""
        near, far = sorted((one, other))
        return self._links[near, far]

    def silence(self, speaker: str, hearer: str) -> None:
        """Block one direction: `hearer` gets nothing from `speaker`, which still hears `hearer`."""
        self.link(speaker, hearer).hold([Direction.FORTH if speaker < hearer else Direction.BACK])

    def partition(self, *groups: Collection[str]) -> None:
        """Cut every line between nodes of different groups, and mend those within one."""
        for (near, far), proxy in self._links.items():
            if any(near in group and far in group for group in groups):
                proxy.mend()
            else:
                proxy.cut()

    def heal(self) -> None:
        """Mend every line. Delays and throttles stay."""
        for proxy in self._links.values():
            proxy.mend()

    # ---- what the nodes say: those that run

    def wait_together(self, within_s: float = TOGETHER_WITHIN_S) -> float:
        """Wait until each running node has a link to each other, and reports that it reaches all.

        Return the seconds.
        """
        sids = {node.sid for node in self.running}
        return self.wait_until(lambda statuses: all(_reached(status) == sids for status in statuses), within_s)

    def wait_until_equal(self, within_s: float = 120.0) -> float:
        """Wait until all nodes have the same digest. Return the seconds."""
        return self.wait_until(lambda statuses: len({status["digest"] for status in statuses}) == 1, within_s)

    def wait_until(self, true_of: Callable[[list[dict[str, object]]], bool], within_s: float) -> float:
        """Poll the statuses until `true_of` accepts them. Return the seconds."""
        began = time.perf_counter()
        statuses: list[dict[str, object]] = []
        while time.perf_counter() - began < within_s:
            asked = time.perf_counter()
            with suppress(UnansweredError):  # a node that has just started first counts its mailboxes
                if true_of(statuses := [node.get("/api/v1/status") for node in self.running]):
                    return time.perf_counter() - began
            time.sleep(0.05 + 4 * (time.perf_counter() - asked))  # to answer is work for the nodes, too
        raise MeasurementError(f"the nodes do not come together in {within_s:.0f} s: {statuses}")

    def usage(self) -> dict[str, NodeUsage]:
        return {node.sid: node.usage() for node in self.running}

    # ---- configuration

    def _config(self, node: Node) -> str:
        listen = "".join(f'{door} = "{HOST}:{port}"\n' for door, port in node.ports.items() if door != "peer")
        peers = "".join(
            f'[[peer]]\nid = "{peer.sid}"\naddress = "{self._way(node, peer)}"\n'
            for peer in self.nodes
            if peer is not node
        )
        extra = f"{self._extra}{node.site.extra}"
        workers = "" if "[workers]" in extra else "[workers]\ndoors = 0\n"  # whatever cores the machine has
        return (
            f'[node]\nid = "{node.sid}"\n'
            f'[listen]\npeer = "{node.site.host}:{node.ports["peer"]}"\n{listen}'
            f'{peers}[users]\npasswd_file = "users.passwd"\n{self._durability}{workers}{extra}'
        )

    def _way(self, node: Node, peer: Node) -> str:
        """Return the address where the node finds the peer. Of two nodes the one with the lower SID dials."""
        proxy = self._links.get((node.sid, peer.sid))
        return f"{HOST}:{proxy.port}" if proxy else f"{peer.site.host}:{peer.ports['peer']}"


def _reached(status: Mapping[str, object]) -> set[str]:
    """Return the nodes to which this one has a link, and itself.

    The set is empty if the node does not reach all of them, or does not serve.
    """
    if status["not_serving"]:
        return set()
    links = cast("list[dict[str, object]]", status["links"])
    linked = {cast("str", status["sid"]), *(cast("str", link["peer"]) for link in links if link["up"])}
    return linked if linked == set(cast("list[str]", status["component"])) else set()


def reserve_ports(count: int) -> list[socket.socket]:
    """Return sockets that reserve ports for nodes.

    Being bound, the ports are not used as source ports; not listening, they still let a node bind: both set
    SO_REUSEADDR.
    """
    sockets = [socket.socket() for _ in range(count)]
    for reserved in sockets:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
    return sockets
