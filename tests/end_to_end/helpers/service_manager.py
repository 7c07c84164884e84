"""A cluster whose nodes are started and stopped by scripts, which call `systemctl` and `replicator`.

Both names lead to programs in a directory of their own. That `replicator` is this source tree's; that `systemctl` asks
this process, which starts and stops real nodes as the unit's documentation says.
"""

from __future__ import annotations

import os
import shlex
import socketserver
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import TracebackType
from typing import Self

from benchmarks.clients.wire import MeasurementError
from benchmarks.clusters.cluster import DOORS, PASSWORD, Node, Site, reserve_ports
from benchmarks.clusters.proxy import HOST, Proxy

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "deploy" / "procedures"
SCRIPT_WITHIN_S = 300.0
WAIT = "4m"

SYSTEMCTL = """#!{python} -SE
import socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect({socket!r})
asked.sendall(" ".join(sys.argv[1:]).encode() + b"\\n")
answer = asked.makefile().read()
sys.stderr.write(answer)
sys.exit(bool(answer))
"""


class ServiceManager:
    """Nodes of which none runs at first. Leaving the `with` block ends them.

    `peers`: node -> the nodes that its configuration names. `proxies`: the way from one node to another.
    """

    def __init__(
        self, directory: Path, users: Sequence[str], peers: Mapping[str, Collection[str]], extra: str = ""
    ) -> None:
        self.directory, self._extra = directory, extra
        self._reserved = reserve_ports(len(peers) * len(DOORS))
        ports = iter(int(reserved.getsockname()[1]) for reserved in self._reserved)
        self.nodes = {sid: Node(sid, directory, {door: next(ports) for door in DOORS}, Site(), None) for sid in peers}
        self.asked = list[str]()  # of systemctl
        self._programs = directory / "programs"
        self._programs.mkdir(parents=True)
        (directory / "users.passwd").write_text("".join(f"{user}:{{PLAIN}}{PASSWORD}\n" for user in users), "utf-8")
        for sid, others in peers.items():
            self.config(sid).write_text(self._text(sid, others), "utf-8")
        self._program("replicator", f'#!/bin/sh\nexec {shlex.join([sys.executable, "-m", "replicator"])} "$@"\n')
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for reserved in self._reserved:
                stack.enter_context(reserved)
            for node in self.nodes.values():
                stack.callback(node.stop)
            path = f"{stack.enter_context(TemporaryDirectory())}/systemctl"  # a short path, as sockets need
            self._program("systemctl", SYSTEMCTL.format(python=sys.executable, socket=path))
            server = stack.enter_context(socketserver.ThreadingUnixStreamServer(path, self._handler()))
            thread = Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def config(self, sid: str) -> Path:
        return self.directory / f"{sid}.toml"

    def address(self, sid: str) -> str:
        """Return where other nodes find this one."""
        return f"{HOST}:{self.nodes[sid].ports['peer']}"

    def proxied(self, near: str, far: str) -> Proxy:
        """Put a proxy between two nodes that have not started yet; the one with the lower SID dials."""
        proxy = self._stack.enter_context(Proxy(self.nodes[far].address("peer")))
        text = self.config(near).read_text("utf-8")
        self.config(near).write_text(text.replace(self.address(far), f"{HOST}:{proxy.port}"), "utf-8")
        return proxy

    def options(self, *sids: str) -> list[str]:
        """Return the options that name these nodes."""
        return [word for sid in sids for word in ("--config", str(self.config(sid)))]

    def script(self, name: str, *arguments: str, code: int = 0, **variables: str) -> str:
        """Run a procedure, and return all that it prints."""
        return self._run([str(SCRIPTS / name), *arguments], code, variables)

    def replicator(self, *arguments: str, code: int = 0) -> str:
        return self._run(["replicator", *arguments], code, {})

    def _run(self, command: Sequence[str], code: int, variables: Mapping[str, str]) -> str:
        path = f"{self._programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        environment = {**os.environ, "WAIT": WAIT, "KICK_AFTER": "1s", **variables, "PATH": path}
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=SCRIPT_WITHIN_S, check=False,
        )  # fmt: skip
        assert ended.returncode == code, f"{command} ends with {ended.returncode}:\n{ended.stdout}"
        return ended.stdout

    def _text(self, sid: str, others: Collection[str]) -> str:
        ports = self.nodes[sid].ports
        listen = "".join(f'{door} = "{HOST}:{ports[door]}"\n' for door in DOORS)
        peers = "".join(f'[[peer]]\nid = "{other}"\naddress = "{self.address(other)}"\n' for other in others)
        users = '[users]\npasswd_file = "users.passwd"\n'
        return f'[node]\nid = "{sid}"\n[listen]\n{listen}{peers}{users}[workers]\ndoors = 0\n{self._extra}'

    def _program(self, name: str, text: str) -> None:
        (self._programs / name).write_text(text, "utf-8")
        (self._programs / name).chmod(0o755)

    def _handler(self) -> type[socketserver.StreamRequestHandler]:
        manager = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(manager.systemctl(self.rfile.readline().decode().strip()).encode())

        return Handler

    def systemctl(self, asked: str) -> str:
        """Do what systemctl is asked to do, and return the error, if there is one."""
        self.asked.append(asked)
        *what, unit = asked.split()
        node = self.nodes[unit.removeprefix("mail-replicator@")]
        try:
            if what in (["start"], ["enable", "--now"]):
                node.start()
            elif what in (["stop"], ["disable", "--now"]):
                node.stop()
            else:
                return f"this systemctl cannot {asked}\n"
        except MeasurementError as error:
            return f"{error}\n"
        return ""
