"""Two clusters behind real proxies that ask a node where a user's mail is, configured as docs/scaling.md says."""

from __future__ import annotations

import imaplib
import os
import pwd
import shutil
import smtplib
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio

from replicator.config import (
    Address,
    ClusterConfig,
    Config,
    HttpConfig,
    ListenConfig,
    NodeConfig,
    ProxyConfig,
    default_config,
)
from replicator.http.tokens import Role, add_token
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.pages import block, put

NGINX, DOVECOT = shutil.which("nginx", path="/usr/sbin:/usr/bin"), Path("/usr/sbin/dovecot")
NGINX_MAIL = Path("/usr/lib/nginx/modules/ngx_mail_module.so")
DOVECOT_PARTS = ("imap-login", "lmtp", "modules/auth/libauthdb_lua.so")
needs_nginx = pytest.mark.skipif(
    NGINX is None or not NGINX_MAIL.exists(), reason="nginx's mail module is missing: apt-get install libnginx-mod-mail"
)
needs_dovecot = pytest.mark.skipif(
    not all((Path("/usr/lib/dovecot") / part).exists() for part in DOVECOT_PARTS),
    reason="Dovecot's proxy is missing: apt-get install dovecot-imapd dovecot-lmtpd dovecot-auth-lua",
)
USERS = "alice:{PLAIN}secret::::::cluster=east\nbob:{PLAIN}secret::::::cluster=west\ncarol:{PLAIN}secret\n"
"""Without the name of a cluster, carol has mail in none."""

PATIENCE_S = 60.0


@asynccontextmanager
async def site(directory: Path, proxy: ProxyConfig) -> AsyncIterator[tuple[Config, str]]:
    """Run the clusters east and west, of a node each. Yield the configuration of east, and a token for proxies."""
    users, tokens = directory / "users.passwd", directory / "http.tokens"
    users.write_text(USERS, "utf-8")
    token = add_token(tokens, "proxy", Role.PROXY)
    east, west = (
        ListenConfig(*(None, *(Address("127.0.0.1", port) for port in ports)))
        for ports in zip(*[iter(free_ports(6))] * 3, strict=True)
    )
    clusters = tuple(ClusterConfig(name, listen.imap, listen.lmtp) for name, listen in (("east", east), ("west", west)))

    def of(cluster: str, sid: str, listen: ListenConfig) -> Config:
        config = default_config(sid, directory, listen=listen)
        node = NodeConfig(sid, directory / sid, cluster)
        return replace(config, node=node, clusters=clusters, proxy=proxy, http=HttpConfig(tokens))

    configs = [of("east", "dc1", east), of("west", "dc2", west)]
    async with running(configs):
        yield configs[0], token


@asynccontextmanager
async def started(command: Sequence[str], address: Address, log: Path) -> AsyncIterator[None]:
    """Run a proxy until the block ends, once it listens."""
    with log.open("wb") as output:
        async with trio.open_nursery() as nursery:
            run = partial(trio.run_process, list(command), stdout=output, stderr=subprocess.STDOUT, check=False)
            process = await nursery.start(run)
            with trio.fail_after(PATIENCE_S):
                while not await listens(address):
                    assert process.returncode is None, await trio.Path(log).read_text("utf-8")
                    await trio.sleep(0.05)
            yield
            process.terminate()
            with trio.fail_after(PATIENCE_S):  # trio gives a program that is cancelled five seconds to end
                await process.wait()


async def listens(address: Address) -> bool:
    try:
        await (await trio.open_tcp_stream(*address)).aclose()
    except OSError:
        return False
    return True


class Client(imaplib.IMAP4):
    """A client whose address is none of a proxy."""

    def _create_socket(self, timeout: float | None) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout, source_address=("127.0.0.2", 0))


def append(imap: Address, user: str, password: str = "secret") -> None:
    with Client(*imap, timeout=PATIENCE_S) as client:
        client.login(user, password)
        assert client.append("INBOX", "", "", f"Subject: of {user}\r\n\r\nx\r\n".encode())[0] == "OK"


def shown(imap: Address, user: str) -> list[bytes]:
    with Client(*imap, timeout=PATIENCE_S) as client:
        client.login(user, "secret")
        client.select("INBOX")
        _, found = client.fetch("1:*", "(BODY.PEEK[HEADER.FIELDS (SUBJECT)])")
        return [part[1].strip() for part in found if isinstance(part, tuple)]


def check_imap(front: Address, config: Config) -> None:
    """Use the mail of users of all clusters through a proxy, and look where it is."""
    east, west = (cluster.imap for cluster in config.clusters if cluster.imap)
    for user, home in (("alice", east), ("bob", west)):
        append(front, user)
        assert shown(front, user) == shown(home, user) == [f"Subject: of {user}".encode()]
    for home, stranger in ((west, "alice"), (east, "bob")):
        with pytest.raises(imaplib.IMAP4.error, match=f"UNAVAILABLE.*the mail of {stranger} is in another cluster"):
            append(home, stranger)
    for user, password in (("alice", "wrong"), ("nobody", "secret")):
        with pytest.raises(imaplib.IMAP4.error, match="AUTHENTICATIONFAILED"):
            append(front, user, password)
    with pytest.raises(imaplib.IMAP4.error, match="UNAVAILABLE"):
        append(front, "carol")


@needs_nginx
async def test_nginx_passes_clients_to_the_cluster_of_their_mail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loopback = (ip_network("127.0.0.1"),)
    async with site(tmp_path, ProxyConfig(loopback, loopback)) as (config, token):
        front, asking = (Address("127.0.0.1", port) for port in free_ports(2))
        text = put(
            block("scaling.md", "nginx", "nginx"),
            ("server dc1.example.org:1080;", f"server {config.listen.http};"),
            ("        server dc2.example.org:1080;\n", ""),
            ("https://nodes", "http://nodes"),
            ("            proxy_ssl_trusted_certificate /etc/nginx/ca.pem;\n", ""),
            ("127.0.0.1:8080", str(asking)),
            ("TOKEN", token),
            ("127.0.0.1:143", str(front)),
        )
        temporary = "".join(f"    {kind}_temp_path {tmp_path}/{kind};\n" for kind in TEMPORARY)
        text = text.replace("http {\n", f"http {{\n    access_log off;\n{temporary}", 1)
        file = tmp_path / "nginx.conf"
        file.write_text(f"daemon off;\nmaster_process off;\npid {tmp_path}/nginx.pid;\n{text}", "utf-8")
        assert NGINX is not None
        command = [NGINX, "-c", str(file), "-e", str(tmp_path / "error.log")]
        with caplog.at_level("INFO"):
            async with started(command, front, tmp_path / "nginx.log"):
                await trio.to_thread.run_sync(check_imap, front, config)
        assert "a proxy's login ok user=alice client=127.0.0.2" in caplog.text
        assert "login ok user=bob client=127.0.0.2 mechanism=LOGIN" in caplog.text


TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
"""Directories of nginx, which would lie where only root may write."""


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a directory that Dovecot's own users can enter, other than those of pytest."""
    with TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@needs_dovecot
async def test_dovecot_passes_clients_and_mail_to_the_cluster_of_their_users(tmp_path: Path, home: Path) -> None:
    async with site(tmp_path, ProxyConfig()) as (config, token):
        imap, lmtp = (Address("127.0.0.1", port) for port in free_ports(2))
        script = put(
            block("scaling.md", "Dovecot", "lua"), ("127.0.0.1:1080", str(config.listen.http)), ("TOKEN", token)
        )
        (home / "where.lua").write_text(script, "utf-8")
        page = put(block("scaling.md", "Dovecot", "dovecot"), ("/etc/dovecot/where.lua", str(home / "where.lua")))
        (home / "dovecot.conf").write_text(page + dovecot_here(home, imap, lmtp), "utf-8")
        command = [str(DOVECOT), "-F", "-c", str(home / "dovecot.conf")]
        async with started(command, imap, home / "output.log"):
            await trio.to_thread.run_sync(check_imap, imap, config)
            await trio.to_thread.run_sync(check_lmtp, lmtp, config)


def check_lmtp(front: Address, config: Config) -> None:
    """Deliver mail to users of all clusters through a proxy, and look where it is."""
    (east, west), (_, lmtp_of_west) = ([getattr(one, door) for one in config.clusters] for door in ("imap", "lmtp"))
    for user, home in (("alice", east), ("bob", west)):
        assert delivered(front, user) is None
        assert shown(home, user)[-1] == b"Subject: delivered"
    assert delivered(front, "nobody") == 550
    assert delivered(front, "carol") == 451
    assert delivered(lmtp_of_west, "alice") == 451


def delivered(lmtp: Address, user: str) -> int | None:
    """Deliver a mail. Return the code by which the recipient is refused, if so."""
    with smtplib.LMTP(*lmtp) as mta:
        try:
            mta.sendmail("a@example.org", [user], b"Subject: delivered\r\n\r\nx\r\n")
        except smtplib.SMTPRecipientsRefused as refused:
            return refused.recipients[user][0]
    return None


def dovecot_here(home: Path, imap: Address, lmtp: Address) -> str:
    """Return what a private Dovecot needs besides the page's configuration."""
    root, user = os.getuid() == 0, pwd.getpwuid(os.getuid()).pw_name
    return f"""
listen = 127.0.0.1
base_dir = {home}/run
state_dir = {home}/state
log_path = {home}/dovecot.log
ssl = no
disable_plaintext_auth = no
default_internal_user = {"dovecot" if root else user}
default_login_user = {"dovenull" if root else user}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {imap.port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service lmtp {{
  inet_listener lmtp {{
    address = 127.0.0.1
    port = {lmtp.port}
  }}
}}
"""
