"""Log-ins by access tokens and certificates at a real node, with a real provider of keys, curl and Python's library."""

from __future__ import annotations

import http.client
import imaplib
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme

from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError
from replicator.cli.target import NodeUrl
from replicator.config import (
    Address,
    CertificateConfig,
    ClientCertificatesConfig,
    Config,
    ListenConfig,
    OauthConfig,
    default_config,
)
from replicator.oauth import provider_keys
from tests.client_authority import ClientAuthority
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.oauth.issuer import AUDIENCE, ISSUER, SigningKey, key_set
from tests.oauth.key_server import KeyServer, answer, key_server

CURL = shutil.which("curl")
needs_curl = pytest.mark.skipif(CURL is None, reason="curl is not installed: apt-get install curl")
OLD, NEW = SigningKey("old", "RS256"), SigningKey("new", "Ed25519")


@dataclass
class Site:
    """A node's directory, with certificates of the node and of the CAs."""

    directory: Path
    ca: trustme.CA
    clients: ClientAuthority

    def config(self, oauth: OauthConfig | None = None) -> Config:
        issued = self.ca.issue_cert("localhost", "127.0.0.1")
        certificate = CertificateConfig(self.directory / "mail.pem", self.directory / "mail.key")
        issued.cert_chain_pems[0].write_to_path(certificate.file)
        issued.private_key_pem.write_to_path(certificate.key)
        (self.directory / "users.passwd").write_text("alice:*\nbob:{PLAIN}secret\n", "utf-8")
        imap, imaps, http_port = (Address("127.0.0.1", port) for port in free_ports(3))
        return replace(
            default_config("dc1", self.directory, listen=ListenConfig(imap=imap, imaps=imaps, http=http_port)),
            certificates=(certificate,),
            client_certificates=ClientCertificatesConfig(self.directory / "clients.pem"),
            oauth=oauth,
        )

    def provider(self, jwks: Path | str) -> OauthConfig:
        ca = self.directory / "ca.pem" if isinstance(jwks, str) else None
        return OauthConfig(ISSUER, AUDIENCE, jwks, "email", ca, scopes=("imap",))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path, trustme.CA(), ClientAuthority.create())
    site.ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    site.clients.write_to(tmp_path / "clients.pem")
    return site


@asynccontextmanager
async def with_provider(site: Site) -> AsyncIterator[tuple[Config, KeyServer]]:
    """Run a node, and a provider that publishes the old key."""
    async with key_server(site.ca) as server:
        server.says = answer(key_set(OLD))
        config = site.config(site.provider(server.url))
        with trio.fail_after(60):
            async with running([config]):
                yield config, server


def token(key: SigningKey, **claims: object) -> str:
    """Return a token that is in force now."""
    return key.token(**{"exp": time.time() + 300, "scope": "openid imap", **claims})


def url(config: Config, *, secure: bool) -> str:
    address = config.listen.imaps if secure else config.listen.imap
    return f"{'imaps' if secure else 'imap'}://{address}/INBOX"


async def by_curl(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert CURL is not None
    command = [CURL, "--verbose", "--silent", "--show-error", "--noproxy", "*"]
    command += ["--cacert", str(site.directory / "ca.pem"), *arguments]
    run = partial(subprocess.run, command, capture_output=True, text=True, timeout=30, check=False)
    return await trio.to_thread.run_sync(run)


def log_in(config: Config, shown: str, user: str = "") -> str:
    """Log in by Python's library and XOAUTH2, as scripts do. Return OK, or the code of the refusal."""
    assert config.listen.imap is not None
    said = f"user={user}\1auth=Bearer {shown}\1\1".encode()
    client = imaplib.IMAP4(*config.listen.imap)
    try:
        client.authenticate("XOAUTH2", lambda challenge: b"" if challenge else said)
        return client.select()[0]
    except imaplib.IMAP4.error as error:
        [code] = re.findall(r"\[([A-Z]+)\]", str(error))
        return str(code)
    finally:
        client.shutdown()


async def accepts(config: Config, shown: str, user: str = "") -> bool:
    code = await trio.to_thread.run_sync(log_in, config, shown, user)
    assert code in {"OK", "AUTHENTICATIONFAILED"}
    return code == "OK"


@needs_curl
@pytest.mark.parametrize("secure", [False, True])
async def test_curl_logs_in_by_a_token(site: Site, *, secure: bool) -> None:
    async with with_provider(site) as (config, _):
        place = ["--user", "alice:", url(config, secure=secure)]
        done = await by_curl(site, "--oauth2-bearer", token(OLD), *place)
        assert done.returncode == 0, done.stderr
        assert "AUTHENTICATE OAUTHBEARER " in done.stderr
        assert "* LIST" in done.stdout
        refused = await by_curl(site, "--oauth2-bearer", token(OLD, aud="web"), *place)
        assert refused.returncode == 67  # CURLE_LOGIN_DENIED
        other = await by_curl(site, "--oauth2-bearer", token(OLD, email="bob@example.org"), *place)
        assert other.returncode == 67


@needs_curl
async def test_curl_logs_in_by_a_certificate(site: Site) -> None:
    certificate = site.clients.issue(site.directory / "alice.pem", "Alice", emails=["alice@example.org"])
    config = site.config()
    with trio.fail_after(60):
        async with running([config]):
            place = ["--user", "alice:", "--login-options", "AUTH=EXTERNAL", url(config, secure=True)]
            done = await by_curl(site, "--cert", str(certificate), *place)
            assert done.returncode == 0, done.stderr
            assert "AUTHENTICATE EXTERNAL" in done.stderr
            assert "* LIST" in done.stdout
            assert (await by_curl(site, *place)).returncode != 0
            password = [url(config, secure=True), "--user", "bob:secret"]
            assert (await by_curl(site, *password)).returncode == 0
            assert (await by_curl(site, "--cert", str(certificate), *password)).returncode == 0
            foreign = ClientAuthority.create("others").issue(site.directory / "foreign.pem", "bob")
            assert (await by_curl(site, "--cert", str(foreign), *password)).returncode != 0


async def test_provider_changes_its_keys_and_goes_away(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_provider(site) as (config, server):
        assert await accepts(config, token(OLD))
        assert not await accepts(config, token(NEW))
        server.says = answer(key_set(NEW))
        assert not await accepts(config, token(NEW)), "the keys were read a moment ago"
        requests = len(server.requests)
        monkeypatch.setattr(provider_keys, "PAUSE_S", 0.0)
        assert await accepts(config, token(NEW))
        assert not await accepts(config, token(OLD))
        assert len(server.requests) > requests
        for hostile in (answer(b"x" * 300_000), answer(b"<html>"), answer(b"", "302 Found"), b"nonsense", b""):
            server.says = hostile
            assert not await accepts(config, token(OLD))
            assert await accepts(config, token(NEW))
    assert caplog.text.count("the last keys stay in force") == 5
    assert token(NEW)[-80:] not in caplog.text


@needs_curl
async def test_node_serves_without_the_provider(site: Site) -> None:
    async with key_server(site.ca) as server:
        pass  # nobody listens there now
    config = site.config(site.provider(server.url))
    with trio.fail_after(60):
        async with running([config]):
            assert await trio.to_thread.run_sync(log_in, config, token(OLD)) == "UNAVAILABLE"
            assert (await by_curl(site, "--user", "bob:secret", url(config, secure=True))).returncode == 0


async def test_file_of_keys_is_read_again_at_a_reload(site: Site) -> None:
    file = site.directory / "keys.json"
    file.write_bytes(key_set(OLD))
    config = site.config(site.provider(file))
    assert config.listen.http is not None
    with trio.fail_after(60):
        async with running([config]):
            assert await accepts(config, token(OLD), "alice")
            file.write_bytes(key_set(NEW))
            assert not await accepts(config, token(NEW))
            with NodeClient(NodeUrl(*config.listen.http)) as asking:
                await trio.to_thread.run_sync(asking.reload)
                assert await accepts(config, token(NEW), "alice")
                assert not await accepts(config, token(NEW), "bob")
                file.write_text("nonsense", "ascii")
                with pytest.raises(
                    RefusedError, match=r"keys stay as they were: \[oauth\] jwks: cannot use .* not JSON"
                ):
                    await trio.to_thread.run_sync(asking.reload)
            assert await accepts(config, token(NEW), "alice")
            assert 'replicator_oauth_key_reads_total{result="ok"} 2.0' in await trio.to_thread.run_sync(metrics, config)


def metrics(config: Config) -> str:
    assert config.listen.http is not None
    client = http.client.HTTPConnection(*config.listen.http, timeout=10)
    try:
        client.request("GET", "/metrics")
        return client.getresponse().read().decode()
    finally:
        client.close()
