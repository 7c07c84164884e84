"""A Dovecot and a cluster of three nodes, which all histories share, and the links between the nodes."""

from __future__ import annotations

import imaplib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from benchmarks.clusters.cluster import PASSWORD as NODES_PASSWORD
from benchmarks.clusters.cluster import Cluster, Site
from replicator.config import Address
from tests.dsync.dovecot import IMAP, PASSWORD, USERS_PASSWORD, Dovecot
from tests.dsync.histories.side import Side
from tests.dsync.pushed import listening_dovecot
from tests.end_to_end.helpers.in_process import free_ports
from tests.end_to_end.helpers.load import SHORT_TIMEOUTS, SIDS

DOVECOT = "dovecot"
PATIENCE_S = 60.0
DOOR = '[doveadm]\npassword_file = "secret"\n'
PUSHED = "p"
"""Begin of the names of users whose mail `PUSHING` syncs with the Dovecot by itself."""

PUSHING = "dc1"
CALLS = """
[[dovecot]]
address = "{address}"
password_file = "secret"
users = ["{users}*"]
sync_every = "1s"
"""

Groups = Sequence[Sequence[str]]
"""Nodes that reach each other."""

TOGETHER: Groups = [SIDS]
PARTITIONS: Sequence[Groups] = [
    TOGETHER,
    [[sid] for sid in SIDS],
    *([[sid], [other for other in SIDS if other != sid]] for sid in SIDS),
]


@dataclass(frozen=True)
class Servers:
    """The servers. A user has the same name at all of them."""

    dovecot: Dovecot
    dovecots_imap: Address
    cluster: Cluster

    def side(self, name: str, user: str, stack: ExitStack) -> Side:
        """Return a user's side at a server, as long as the stack is open."""
        is_dovecot = name == DOVECOT
        host, port = self.dovecots_imap if is_dovecot else self.cluster.node(name).address("imap")

        def connect() -> imaplib.IMAP4:
            client = imaplib.IMAP4(host, port, PATIENCE_S)
            client.login(user, USERS_PASSWORD if is_dovecot else NODES_PASSWORD)
            return client

        side = Side(name, connect, is_dovecot)
        stack.callback(side.log_out)
        return side

    def part(self, groups: Groups) -> None:
        """Let nodes of different groups not reach each other, and wait until they know it."""
        self.cluster.partition(*groups)
        group_of = {sid: {*group} for group in groups for sid in group}

        def knows(status: dict[str, object]) -> bool:
            component = cast("list[str]", status["component"])
            return not status["not_serving"] and {*component} == group_of[cast("str", status["sid"])]

        self.cluster.wait_until(lambda statuses: all(map(knows, statuses)), PATIENCE_S)


@contextmanager
def servers(directory: Path, users: Sequence[str]) -> Iterator[Servers]:
    """Run the servers."""
    directory.mkdir()
    (directory / "secret").write_text(f"{PASSWORD}\n", "utf-8")
    address = Address("127.0.0.1", free_ports(1)[0])
    with listening_dovecot(more=IMAP.format(address=address)) as (server, doveadm):
        sites = {sid: Site(extra=CALLS.format(address=doveadm, users=PUSHED) * (sid == PUSHING)) for sid in SIDS}
        extra = SHORT_TIMEOUTS + DOOR
        with Cluster(directory, users, proxied=True, extra=extra, more_doors=["doveadm"], sites=sites) as cluster:
            yield Servers(server, address, cluster)
