"""The metrics of real nodes, one of which has doors in a process of its own, and the other has served clients."""

from __future__ import annotations

import imaplib
import smtplib
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import trio

from replicator.cli.authority import Authority
from replicator.config import (
    Address,
    Config,
    DoveadmConfig,
    EndpointConfig,
    ListenConfig,
    OauthConfig,
    PeerConfig,
    UsersConfig,
    UserSource,
    WorkersConfig,
    default_config,
)
from replicator.node import run_node
from tests.end_to_end.helpers.in_process import free_ports
from tests.oauth.issuer import AUDIENCE, ISSUER, SigningKey, key_set

MAIL = "Subject: counted\r\n\r\nText\r\n"


def configs(directory: Path) -> list[Config]:
    """Return two nodes with certificates and an identity provider. A server that is down knows the users of one."""
    authority, keys = Authority.create(directory, "tests"), directory / "keys.json"
    (directory / "users.passwd").write_text("alice:{PLAIN}secret\n", "utf-8")
    keys.write_bytes(key_set(SigningKey("one")))
    (directory / "doveadm.password").write_text("a secret\n", "utf-8")
    ports = free_ports(10)
    nodes = []
    for number, sid in enumerate(("dc1", "dc2")):
        authority.issue(sid)
        peer, imap, lmtp, http = (Address("127.0.0.1", port) for port in ports[4 * number : 4 * number + 4])
        other = PeerConfig(f"dc{2 - number}", Address("127.0.0.1", ports[4 - 4 * number]))
        doveadm = Address("127.0.0.1", ports[8 + number])
        listen = ListenConfig(peer, imap=imap, lmtp=lmtp, http=http, doveadm=doveadm)
        config = default_config(sid, directory, listen=listen, peers=(other,))
        oauth, workers = OauthConfig(ISSUER, AUDIENCE, keys, "email"), WorkersConfig(doors=number)
        door = DoveadmConfig(directory / "doveadm.password")
        nodes.append(replace(config, tls=authority.files(sid), oauth=oauth, workers=workers, doveadm=door))
    users = UsersConfig(nodes[1].node.cluster_users, UserSource.ENDPOINT)
    nodes[1] = replace(nodes[1], users=users, endpoint=EndpointConfig("http://127.0.0.1:1/users"))
    return nodes


def metrics_of(directory: Path) -> list[str]:
    """Return what the nodes answer at /metrics, the one with a door's process last."""

    async def run() -> list[str]:
        nodes = configs(directory)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for config in nodes:
                    ready = trio.Event()
                    nursery.start_soon(partial(run_node, config, ready=ready.set, new_cluster=config is nodes[0]))
                    await ready.wait()
                await trio.to_thread.run_sync(_use, nodes[0])
                texts = [await trio.to_thread.run_sync(_read, node) for node in nodes]
                nursery.cancel_scope.cancel()
        return texts

    return trio.run(run)


def _use(node: Config) -> None:
    """Deliver a message, and look at it."""
    assert node.listen.lmtp is not None
    assert node.listen.imap is not None
    with smtplib.LMTP(*node.listen.lmtp) as mta:
        mta.sendmail("bob@example.org", "alice", MAIL)
    client = imaplib.IMAP4(*node.listen.imap)
    client.login("alice", "secret")
    client.select()
    client.logout()


def _read(node: Config) -> str:
    with urlopen(f"http://{node.listen.http}/metrics") as answer:
        text: str = answer.read().decode()
        return text
