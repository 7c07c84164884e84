from __future__ import annotations

import dataclasses
import logging
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme

from replicator.config import CertificateConfig
from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from replicator.network.certificates import Certificates
from replicator.users import UserDirectory, add_user, delete_user
from tests.imap.arrangements import ARRANGEMENTS
from tests.imap.client import Client, connected, services
from tests.one_door import remote_users
from tests.one_node import HookedMail
from tests.scram_client import ScramClient

ANNOUNCED = "AUTH=SCRAM-SHA-256 AUTH=PLAIN"
END_POINT = "p=tls-server-end-point,,"
NAMES = ("mail.example.org", "imap.example.net")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "users.passwd"
    add_user(path, "alice", "secret", scheme="SCRAM-SHA-256")
    return path


@pytest.fixture(params=ARRANGEMENTS)
async def served(
    users: UserDirectory, mail: HookedMail, path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[ImapServices]:
    if request.param == "in the core":
        yield dataclasses.replace(services(mail), users=users)
        return
    async with remote_users(users, UserDirectory(path, key=users.key)) as (apart, _):
        yield dataclasses.replace(services(mail), users=apart)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def bound(served: ImapServices, authority: trustme.CA, tmp_path: Path) -> ImapServices:
    """The door with a certificate for each of the names."""
    configured = []
    for name in NAMES:
        issued = authority.issue_cert(name)
        file, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(file)
        issued.private_key_pem.write_to_path(key)
        configured.append(CertificateConfig(file, key))
    return dataclasses.replace(served, tls=Certificates(None, configured).for_clients)


@asynccontextmanager
async def over_tls(served: ImapServices, authority: trustme.CA, name: str) -> AsyncIterator[Client]:
    """Connect a client from another machine, over TLS from the beginning, that has read the greeting."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address="192.0.2.7", tls_first=True))
        client = Client(trio.SSLStream(ours, context, server_hostname=name))
        assert (await client.line()).startswith("* OK ")
        yield client
        await ours.aclose()


async def log_in(client: Client, scram: ScramClient, mechanism: str = "SCRAM-SHA-256", *, early: bool = True) -> str:
    """Run the exchange. Return the end of the command."""
    first = b64encode(scram.first().encode()).decode()
    if early:
        await client.send(f"a AUTHENTICATE {mechanism} {first}\r\n")
    else:
        await client.send(f"a AUTHENTICATE {mechanism}\r\n")
        assert await client.line() == "+ "
        await client.send(first + "\r\n")
    challenge = await client.line()
    if not challenge.startswith("+ "):
        return challenge
    last = scram.last(b64decode(challenge[2:]).decode())
    await client.send(b64encode(last.encode()).decode() + "\r\n")
    answer = await client.line()
    if answer.startswith("+ "):
        assert b64decode(answer[2:]).decode() == scram.expected
        await client.send("\r\n")
        answer = await client.line()
    return answer


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the log says of failed log-ins since the last call."""
    said = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return [line.removeprefix("login failed ") for line in said if line.startswith("login failed ")]


@pytest.mark.parametrize("early", [True, False])
async def test_login_without_sending_the_password(served: ImapServices, *, early: bool) -> None:
    """RFC 7677; the server's last message is a challenge, to which the client says nothing (RFC 4422 section 3.6)."""
    async with connected(served) as client:
        assert ANNOUNCED in (await client.run("CAPABILITY"))[0]
        said = await log_in(client, ScramClient("Alice", "secret"), early=early)
        assert said.startswith("a OK [CAPABILITY ")
        assert (await client.run("SELECT INBOX"))[-1].startswith("t OK")


async def test_wrong_password_and_unknown_user_look_the_same(served: ImapServices) -> None:
    no = "a NO [AUTHENTICATIONFAILED] Wrong user name or password"
    for user in ("alice", "nobody"):
        async with connected(served) as client:
            for _ in range(3):
                assert await log_in(client, ScramClient(user, "wrong")) == no


async def test_only_the_log_tells_that_a_user_has_no_password_for_scram(
    served: ImapServices, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "replicator.imap")
    add_user(path, "bob", "secret", scheme="PLAIN")
    with path.open("a") as file:
        file.write("carol:*\n")
    wrong = "wrong user name or password"
    lacks = (
        "the user has no password for SCRAM; set one by"
        " `replicator user passwd --scheme SCRAM-SHA-256 --config FILE USER`"
    )
    for user, reason in (("bob", lacks), ("Bob@any.example", lacks), ("carol", lacks), ("alice", wrong), ("x", wrong)):
        async with connected(served) as client:
            said = await log_in(client, ScramClient(user, "wrong"))
        assert said == "a NO [AUTHENTICATIONFAILED] Wrong user name or password"
        assert failures(caplog) == [f'user={user} client=127.0.0.1 mechanism=SCRAM-SHA-256 reason="{reason}"']


@pytest.mark.parametrize("last", ["*", "no base64"])
async def test_client_that_does_not_accept_the_servers_proof_is_logged(
    served: ImapServices, caplog: pytest.LogCaptureFixture, last: str
) -> None:
    """The client knows the password. One that cancels before its proof has attempted nothing."""
    caplog.set_level(logging.INFO, "replicator.imap")
    scram = ScramClient("alice", "secret")
    async with connected(served) as client:
        await client.send("a AUTHENTICATE SCRAM-SHA-256\r\n")
        await client.line()
        await client.send("*\r\n")
        assert await client.line() == "a BAD Authentication cancelled"
        assert not caplog.records
        await client.send(f"b AUTHENTICATE SCRAM-SHA-256 {b64encode(scram.first().encode()).decode()}\r\n")
        proof = scram.last(b64decode((await client.line())[2:]).decode())
        await client.send(b64encode(proof.encode()).decode() + "\r\n")
        assert (await client.line()).startswith("+ ")
        await client.send(f"{last}\r\n")
        assert (await client.line()).startswith("b BAD ")
        assert (await client.run("SELECT INBOX"))[-1].startswith("t BAD ")
    why = "the password is right, but the client does not accept this server's proof that it knows it"
    said = [record.getMessage() for record in caplog.records]
    assert said == [f'login failed user=alice client=127.0.0.1 mechanism=SCRAM-SHA-256 reason="{why}"']


async def test_login_plain_works_with_the_stored_form(served: ImapServices) -> None:
    async with connected(served) as client:
        assert (await client.run("LOGIN alice wrong"))[-1].startswith("t NO [AUTHENTICATIONFAILED]")
        assert (await client.run("LOGIN alice secret"))[-1].startswith("t OK")


async def test_scram_is_announced_when_all_users_can_use_it(served: ImapServices, path: Path) -> None:
    add_user(path, "bob", "secret", scheme="PLAIN")
    async with connected(served) as client:
        assert ANNOUNCED not in (await client.run("CAPABILITY"))[0]
        assert (await log_in(client, ScramClient("bob", "secret"))).startswith("a NO [AUTHENTICATIONFAILED]")
        assert (await log_in(client, ScramClient("alice", "secret"))).startswith("a OK")
    delete_user(path, "alice")
    async with connected(served) as client:
        assert await log_in(client, ScramClient("bob", "secret")) == (
            "a NO [CANNOT] Mechanism SCRAM-SHA-256 is not supported here; use PLAIN"
        )


async def test_acting_for_another_user_is_refused(served: ImapServices) -> None:
    async with connected(served) as client:
        said = await log_in(client, ScramClient("alice", "secret", "n,a=bob,"))
        assert said.startswith("a NO [AUTHORIZATIONFAILED]")
        assert (await log_in(client, ScramClient("alice", "secret", "n,a=alice,"))).startswith("a OK")
    for named in ("Alice", "ALICE"):  # a spelling is not another user
        async with connected(served) as client:
            assert (await log_in(client, ScramClient("alice", "secret", f"n,a={named},"))).startswith("a OK")


@pytest.mark.parametrize("said", ["*", "bm90IHNjcmFt", "not base64", ""])
async def test_nonsense_ends_the_exchange_only(served: ImapServices, said: str) -> None:
    first = b64encode(b"n,,n=alice,r=x").decode()
    async with connected(served) as client:
        for before in ([], [first]):
            await client.send("a AUTHENTICATE SCRAM-SHA-256\r\n")
            for response in (*before, said):
                assert (await client.line()).startswith("+")
                await client.send(response + "\r\n")
            assert (await client.line()).startswith("a BAD ")
        assert (await log_in(client, ScramClient("alice", "secret"))).startswith("a OK")


@pytest.mark.parametrize("name", NAMES)
async def test_the_channel_is_bound_to_the_certificate_that_was_shown(
    bound: ImapServices, authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """RFC 5929 section 4: the hash of the server's certificate, here of the name for which the client asks."""
    caplog.set_level(logging.INFO, "replicator.imap")
    shown = sha256(ssl.PEM_cert_to_DER_cert((tmp_path / f"{name}.pem").read_text())).digest()
    async with over_tls(bound, authority, name) as client:
        assert f"AUTH=SCRAM-SHA-256-PLUS {ANNOUNCED}" in (await client.run("CAPABILITY"))[0]
        why = "The channel binding is another one: somebody may be between you and this server"
        for channel in (b"", b"x" * 32):
            said = await log_in(client, ScramClient("alice", "secret", END_POINT, channel), "SCRAM-SHA-256-PLUS")
            assert said == f"a BAD {why}"
            assert failures(caplog) == [f'user=alice client=192.0.2.7 mechanism=SCRAM-SHA-256-PLUS reason="{why}"']
        said = await log_in(client, ScramClient("alice", "secret", END_POINT, shown), "SCRAM-SHA-256-PLUS")
        assert said.startswith("a OK")


@pytest.mark.parametrize(
    ("mechanism", "header", "refusal"),
    [
        ("SCRAM-SHA-256", END_POINT, "Channel binding is for SCRAM-SHA-256-PLUS"),
        ("SCRAM-SHA-256", "y,,", "This server announces channel binding: somebody may be between you and it"),
        ("SCRAM-SHA-256-PLUS", "n,,", "The channel binding here is tls-server-end-point"),
        ("SCRAM-SHA-256-PLUS", "p=tls-unique,,", "The channel binding here is tls-server-end-point"),
    ],
)
async def test_other_bindings_are_refused(
    bound: ImapServices,
    authority: trustme.CA,
    caplog: pytest.LogCaptureFixture,
    *,
    mechanism: str,
    header: str,
    refusal: str,
) -> None:
    """RFC 5802 section 6: whoever strips -PLUS from what is announced is found out by the flag y."""
    caplog.set_level(logging.INFO, "replicator.imap")
    async with over_tls(bound, authority, NAMES[0]) as client:
        assert await log_in(client, ScramClient("alice", "secret", header), mechanism) == f"a BAD {refusal}"
        assert failures(caplog) == [f'user=alice client=192.0.2.7 mechanism={mechanism} reason="{refusal}"']
        assert (await log_in(client, ScramClient("alice", "secret"))).startswith("a OK")


async def test_without_tls_there_is_nothing_to_bind(served: ImapServices) -> None:
    async with connected(served) as client:
        said = await log_in(client, ScramClient("alice", "secret", END_POINT), "SCRAM-SHA-256-PLUS")
        assert said.startswith("a NO [CANNOT] Mechanism SCRAM-SHA-256-PLUS is not supported here; use SCRAM-SHA-256, ")
        assert (await log_in(client, ScramClient("alice", "secret", "y,,"))).startswith("a OK")
    async with connected(served, address="192.0.2.7") as client:
        assert "AUTH=" not in (await client.run("CAPABILITY"))[0]
        assert (await log_in(client, ScramClient("alice", "secret"))).startswith("a NO [PRIVACYREQUIRED]")
