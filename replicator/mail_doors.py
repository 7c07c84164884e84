"""The doors for mail clients and MTAs, in any process: their addresses, and the functions that serve connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Literal, TypeAlias

import trio

from replicator.config import Address, Config, ProxyConfig
from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from replicator.lmtp import LmtpServer
from replicator.network.proxy_header import Client, behind_proxies
from replicator.network.streams import Handler
from replicator.socketmap import SocketmapServer
from replicator.users import Site

Protocol: TypeAlias = Literal["lmtp", "imap", "imaps", "socketmap"]
"""The language of a listening socket."""

MailHandlers: TypeAlias = Mapping[Protocol, Callable[[trio.abc.Stream, Client], Awaitable[None]]]


def addresses_of(config: Config) -> dict[Protocol, Address]:
    """Return where a node listens for mail clients and MTAs, by the protocol."""
    found: dict[Protocol, Address | None] = {
        "lmtp": config.listen.lmtp,
        "imap": config.listen.imap,
        "imaps": config.listen.imaps,
        "socketmap": config.listen.socketmap,
    }
    return {protocol: address for protocol, address in found.items() if address is not None}


def mail_handlers(imap: ImapServices, lmtp: LmtpServer, socketmap: SocketmapServer) -> MailHandlers:
    """Return the function that serves a connection by these services, by protocol."""

    async def serve_lmtp(stream: trio.abc.Stream, client: Client) -> None:
        await lmtp.serve(stream, client.address)

    async def serve(stream: trio.abc.Stream, client: Client, *, tls_first: bool = False) -> None:
        await serve_imap(stream, imap, address=client.address, secure=client.secure, tls_first=tls_first)

    async def serve_socketmap(stream: trio.abc.Stream, client: Client) -> None:
        await socketmap.serve(stream, client.address)

    imaps = partial(serve, tls_first=True)
    return {"lmtp": serve_lmtp, "imap": serve, "imaps": imaps, "socketmap": serve_socketmap}


def handler_of(protocol: Protocol, handlers: MailHandlers, proxies: ProxyConfig) -> Handler:
    """Return the handler of a listening socket. Proxies stand before mail alone: an MTA asks for recipients itself."""
    return behind_proxies(handlers[protocol], ProxyConfig() if protocol == "socketmap" else proxies)


def site_of(config: Config) -> Site:
    """Return where the node is, for its users."""
    return Site(config.node.cluster, has_others=len(config.clusters) > 1)
