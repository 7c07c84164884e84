"""A network of Linux network namespaces: one for each node, with a cable to a common switch.

Packets get lost as they do in real networks: there is no RST, and TCP goes on trying. All names contain this process's
id, and are removed at the end; the next run removes what a killed one has left.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

CLONE_NEWNET = 0x40000000  # <linux/sched.h>
NAMESPACES = Path("/run/netns")
PREFIX = "mrtest"
TABLE = "add table ip lines; flush table ip lines;"
CHAIN = "add chain ip lines in { type filter hook input priority 0; };"


def reason_unavailable() -> str | None:
    """Return the reason why namespaces cannot be used here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: apt-get install iproute2 nftables"
    return None


class Network:
    """Hosts with an address each, all on one switch, until the `with` block ends."""

    def __init__(self, hosts: list[str]) -> None:
        self.addresses = {host: f"10.93.0.{number + 1}" for number, host in enumerate(hosts)}
        self._lost: dict[str, dict[str, int]] = {host: {} for host in hosts}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        _remove_leftovers()
        with ExitStack() as stack:
            switch = self._add_namespace("switch", stack)
            _run(f"ip -n {switch} link add switch type bridge")
            _run(f"ip -n {switch} link set switch up")
            for host, address in self.addresses.items():
                name = self._add_namespace(host, stack)
                _run(f"ip -n {switch} link add {host} type veth peer name cable netns {name}")
                _run(f"ip -n {switch} link set {host} master switch up")
                _run(f"ip -n {name} address add {address}/24 dev cable")
                _run(f"ip -n {name} link set cable up")
                _run(f"ip -n {name} link set lo up")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def prefix(self, host: str) -> str:
        """Return the words that, before a command, make it run at the host."""
        return f"ip netns exec {_name(host)}"

    @contextmanager
    def sockets_at(self, host: str) -> Iterator[None]:
        """Give the host's network to sockets that this thread makes within the `with` block."""
        with Path("/proc/thread-self/ns/net").open("rb") as home, (NAMESPACES / _name(host)).open("rb") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    # ---- faults

    def lose(self, sender: str, receiver: str, percent: int = 100) -> None:
        """Lose so many of the sender's packets to the receiver."""
        self._lost[receiver][sender] = percent
        self._set_losses(receiver, self._lost[receiver])

    def part(self, one: str, other: str) -> None:
        self.lose(one, other)
        self.lose(other, one)

    def pull(self, host: str) -> None:
        """Pull the cable at the switch."""
        _run(f"ip -n {_name('switch')} link set {host} down")

    def mend(self) -> None:
        for host, lost in self._lost.items():
            lost.clear()
            self._set_losses(host, lost)
            _run(f"ip -n {_name('switch')} link set {host} up")

    def _set_losses(self, receiver: str, lost: Mapping[str, int]) -> None:
        rules = "".join(
            f"add rule ip lines in ip saddr {self.addresses[sender]} numgen random mod 100 <= {percent - 1} drop;"
            for sender, percent in lost.items()
        )
        _run(f"{self.prefix(receiver)} nft -f -", f"{TABLE}{CHAIN}{rules}\n")

    def _add_namespace(self, host: str, stack: ExitStack) -> str:
        name = _name(host)
        _run(f"ip netns add {name}")
        stack.callback(partial(_run, f"ip netns delete {name}"))
        return name


def _name(host: str) -> str:
    return f"{PREFIX}-{os.getpid()}-{host}"


def _run(command: str, stdin: str = "") -> None:
    subprocess.run(command.split(), input=stdin, text=True, check=True, timeout=30)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _remove_leftovers() -> None:
    for path in NAMESPACES.glob(f"{PREFIX}-*"):
        owner = re.match(rf"{PREFIX}-(\d+)-", path.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            _run(f"ip netns delete {path.name}")
