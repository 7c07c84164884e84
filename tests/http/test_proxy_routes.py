"""Questions of proxies, as nginx's mail module asks them."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import trio
import trio.testing

from replicator.config import Address, ClusterConfig, LimitsConfig
from replicator.http.access import Access
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices, MailServers
from replicator.http.tokens import Role, Tokens, add_token
from replicator.http.users.proxy_routes import ASKING_MAX, BUSY, FAILED, UNKNOWN
from replicator.users import Site, UserDirectory
from tests.http.conversation import Answer, Conversation, conversation
from tests.one_node import run_inline


class NoNames(trio.abc.HostnameResolver):
    """A resolver that knows IP addresses alone."""

    async def getaddrinfo(self, host: bytes | None, *_: object) -> NoReturn:
        await trio.lowlevel.checkpoint()
        raise socket.gaierror(f"no {host!r}")

    async def getnameinfo(self, *_: object) -> NoReturn:
        await trio.lowlevel.checkpoint()
        raise socket.gaierror


CLUSTERS = (
    ClusterConfig("east", imap=Address("192.0.2.1", 143), lmtp=Address("192.0.2.2", 24)),
    ClusterConfig("west", imap=Address("2001:db8::1", 1143)),
    ClusterConfig("odd", imap=Address("a..b", 143)),
    ClusterConfig("far", imap=Address("mail.far", 143)),
)


@pytest.fixture
def servers(tmp_path: Path) -> MailServers:
    file = tmp_path / "users.passwd"
    file.write_text(
        "alice:{PLAIN}secret:cluster=east\nbob:{PLAIN}pass word%:cluster=west\ncarol:{PLAIN}c:cluster=gone\n"
        "dave:{PLAIN}d:cluster=far\nerin:{PLAIN}e\nj\u00fcrgen:{PLAIN}j:cluster=odd\n",
        "utf-8",
    )
    masters = tmp_path / "masters.passwd"
    masters.write_text("admin:{PLAIN}mighty\n")
    users = UserDirectory(file, run_in_thread=run_inline, site=Site("east"), masters=masters, separator="*")
    return MailServers(users, CLUSTERS)


@pytest.fixture
async def client(services: HttpServices, servers: MailServers) -> AsyncIterator[Conversation]:
    trio.socket.set_custom_hostname_resolver(NoNames())
    async with conversation(HttpServer(replace(services, servers=servers))) as talk:
        yield talk


async def ask(client: Conversation, *headers: str) -> Answer:
    return await client.ask("\r\n".join(["GET /proxy/login HTTP/1.1", "Host: localhost", *headers, "", ""]).encode())


@pytest.mark.parametrize(
    ("headers", "server"),
    [
        (("Auth-Method: plain", "Auth-User: alice", "Auth-Pass: secret"), ("192.0.2.1", "143")),
        (("Auth-User: ALICE%2Bwork@example.org", "Auth-Pass: secret", "Client-IP: 192.0.2.9"), ("192.0.2.1", "143")),
        (("Auth-User: bob", "Auth-Pass: pass%20word%25", "Auth-Protocol: IMAP"), ("2001:db8::1", "1143")),
        (("Auth-User: erin", "Auth-Pass: e"), ("192.0.2.1", "143")),
        (("Auth-User: bob*admin", "Auth-Pass: mighty"), ("2001:db8::1", "1143")),
        (("Auth-Method: none", "Auth-User: alice", "Auth-Protocol: lmtp"), ("192.0.2.2", "24")),
        (("Auth-Method: none", "Auth-User: bob", "Auth-Pass: wrong"), ("2001:db8::1", "1143")),
    ],
)
async def test_the_server_of_a_user_is_told(
    client: Conversation, headers: tuple[str, ...], server: tuple[str, str]
) -> None:
    answer = await ask(client, *headers)
    assert (answer.status, answer.headers["auth-status"]) == (200, "OK")
    assert (answer.headers["auth-server"], answer.headers["auth-port"]) == server


@pytest.mark.parametrize(
    "headers",
    [
        ("Auth-User: alice", "Auth-Pass: wrong"),
        ("Auth-User: nobody", "Auth-Pass: secret"),
        ("Auth-User: alice",),
        ("Auth-Method: none", "Auth-User: nobody"),
        (),
    ],
)
async def test_wrong_names_and_passwords_are_alike(client: Conversation, headers: tuple[str, ...]) -> None:
    answer = await ask(client, *headers)
    assert answer.status == 200
    assert answer.headers["auth-status"] == FAILED
    assert int(answer.headers["auth-wait"]) > 0
    assert "auth-server" not in answer.headers


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (("Auth-User: carol", "Auth-Pass: c"), "no server is configured for the mail of carol (imap, cluster 'gone')"),
        (("Auth-User: bob", "Auth-Method: none", "Auth-Protocol: lmtp"), "(lmtp, cluster 'west')"),
        (("Auth-User: j%C3%BCrgen", "Auth-Pass: j"), "cannot be found now"),
        (("Auth-User: dave", "Auth-Pass: d"), "the server 'mail.far' cannot be found now"),
    ],
)
async def test_a_server_that_is_not_known_is_no_wrong_password(
    client: Conversation, headers: tuple[str, ...], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await ask(client, *headers)
    assert answer.status == 200
    assert answer.headers["auth-status"] == UNKNOWN
    assert why in caplog.text


async def test_nothing_is_known_while_the_users_cannot_be_read(services: HttpServices, tmp_path: Path) -> None:
    servers = MailServers(UserDirectory(tmp_path / "none", site=Site("east")), CLUSTERS)
    async with conversation(HttpServer(replace(services, servers=servers))) as talk:
        answer = await ask(talk, "Auth-User: alice", "Auth-Pass: secret")
    assert answer.headers["auth-status"] == UNKNOWN


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("Auth-Method: cram-md5", "Auth-Method must be plain or none, not 'cram-md5'"),
        ("Auth-Protocol: pop3", "Auth-Protocol must be imap or lmtp, not 'pop3'"),
        ("Auth-User: %ff", "Auth-User, Auth-Pass or Client-IP"),
        ("Client-IP: mail.example", "Auth-User, Auth-Pass or Client-IP"),
    ],
)
async def test_a_question_without_sense_is_refused(client: Conversation, header: str, problem: str) -> None:
    answer = await ask(client, header)
    assert answer.status == 400
    assert problem in str(answer.json["detail"])


async def test_a_node_without_clusters_knows_no_servers(services: HttpServices) -> None:
    async with conversation(HttpServer(services)) as talk:
        answer = await ask(talk, "Auth-User: alice", "Auth-Pass: secret")
    assert (answer.status, "no [[cluster]]" in str(answer.json["detail"])) == (404, True)


async def test_attempts_leave_room_for_other_clients_and_other_requests(
    services: HttpServices, servers: MailServers, autojump_clock: trio.testing.MockClock
) -> None:
    server = HttpServer(replace(services, servers=servers, limits=LimitsConfig(http_connections=20)))
    told = Counter[str]()

    async def attempt(user: str, password: str, address: str) -> None:
        async with conversation(server) as talk:
            answer = await ask(talk, f"Auth-User: {user}", f"Auth-Pass: {password}", f"Client-IP: {address}")
            told[answer.headers["auth-status"]] += 1

    for _ in range(8):  # so that further attempts of this pair are delayed
        await attempt("alice", "wrong", "192.0.2.66")
    told.clear()
    async with trio.open_nursery() as nursery:
        for _ in range(3 * ASKING_MAX):
            nursery.start_soon(attempt, "alice", "wrong", "192.0.2.66")
        await trio.testing.wait_all_tasks_blocked()
        assert told == {BUSY: 2 * ASKING_MAX}
        before = autojump_clock.current_time()
        await attempt("alice", "secret", "192.0.2.7")
        assert autojump_clock.current_time() == before
        assert told["OK"] == 1
        for number in range(3 * ASKING_MAX):
            nursery.start_soon(attempt, f"nobody{number % 3}", "wrong", f"198.51.100.{number}")
        async with conversation(server) as talk:
            assert (await talk.ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")).status == 200
    assert told[UNKNOWN] > 0  # waiting has an end
    assert not servers.asking


async def test_a_single_place_for_connections_is_enough(services: HttpServices, servers: MailServers) -> None:
    limits = LimitsConfig(http_connections=1)
    async with conversation(HttpServer(replace(services, servers=servers, limits=limits))) as talk:
        assert (await ask(talk, "Auth-User: alice", "Auth-Pass: secret")).headers["auth-status"] == "OK"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "http.tokens"


@pytest.mark.parametrize(
    ("role", "question", "status"),
    [
        (Role.PROXY, "/proxy/login", 200),
        (Role.OPERATE, "/proxy/login", 200),
        (Role.READ, "/proxy/login", 403),
        (Role.PROXY, "/api/v1/status", 403),
    ],
)
async def test_the_role_proxy_is_good_for_this_alone(
    services: HttpServices, servers: MailServers, file: Path, role: Role, *, question: str, status: int
) -> None:
    token = add_token(file, "one", role)
    async with conversation(HttpServer(replace(services, servers=servers), Access(Tokens(file)))) as talk:
        head = f"GET {question} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        assert (await talk.ask(head.encode())).status == status
