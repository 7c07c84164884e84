"""Log-ins and look-ups at a real LDAP server."""

from __future__ import annotations

import logging
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme
from prometheus_client import CollectorRegistry

from replicator.config import LdapConfig
from replicator.errors import ConfigError, UserNotLearnedError, UsersUnavailableError
from replicator.network.certificates import Certificates
from replicator.runtime.environment import Abandoning
from replicator.runtime.metrics import exposition
from replicator.user_sources import ldap, server_faults, users_of_server
from replicator.user_sources.ldap import LdapSource
from replicator.user_sources.ldap_filter import escaped, filter_for
from replicator.user_sources.limits import quota_of
from replicator.users import ExternalDirectory, Found, Identity, Login, QuotaLimits, SourceError
from replicator.users.elsewhere.answers import AFTER_FAILURE_S
from tests.user_sources.slapd import BASE, SERVICE_DN, Slapd, needs_slapd, restarted, slapd


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slapd]:
    with slapd(tmp_path_factory.mktemp("slapd")) as server:
        server.add("alice", "secret", "mail: alice@example.org", "mail: a.smith@example.org", "departmentNumber: 1G")
        server.add("bob", "hidden", "mail: bob@example.org", "employeeType: TRUE", "departmentNumber: *:messages=7")
        server.add("carol", "quiet", "mail: carol@example.org", "employeeType: false", "departmentNumber: lots")
        server.add("dave", "p\u00e4\u00adss \ue000")
        server.add("twin1", "x", "mail: twin@example.org")
        server.add("twin2", "x", "mail: twin@example.org")
        yield server


def config_of(server: Slapd) -> LdapConfig:
    return LdapConfig(
        url=server.ldaps_url,
        base=BASE,
        filter="(&(objectClass=inetOrgPerson)(|(uid=%u)(mail=%u)))",
        ca=server.ca,
        bind_dn=SERVICE_DN,
        password_file=server.password_file,
        user_attribute="uid",
        quota_attribute="departmentNumber",
        disabled_attribute="employeeType",
    )


OTHER_CA = object()
"""Stands for the file of a CA that has not signed the server's certificate."""

Maker = Callable[..., ExternalDirectory]


@pytest.fixture
def directory_of() -> Iterator[Maker]:
    """Yield a function that makes directories, whose connections are closed after the test."""
    made = []

    def make(config: LdapConfig, registry: CollectorRegistry | None = None) -> ExternalDirectory:
        users = users_of_server(config, lambda: 1_000, registry or CollectorRegistry(), quota=QuotaLimits(5, 5))
        made.append(users)
        return users

    yield make
    for users in made:
        users.close()


@needs_slapd
@pytest.mark.parametrize("changed", [{}, {"url": "", "starttls": True}, {"url": "", "ca": None}])
async def test_password_is_checked_by_each_kind_of_connection(
    people: Slapd, directory_of: Maker, changed: dict[str, object]
) -> None:
    if "url" in changed:
        changed = {**changed, "url": people.url}
    users = directory_of(replace(config_of(people), **changed))  # type: ignore[arg-type]
    login = await users.verify("Alice+lists@Example.org", "secret", address="192.0.2.1")
    assert login == Login("alice", address="192.0.2.1")
    assert await users.verify("a.smith@example.org", "secret") == Login("alice")
    assert await users.verify("alice", "wrong") is None
    assert await users.verify("nobody@example.org", "secret") is None
    for unusable in ("", "\0", "x" * 5000):
        assert await users.verify("alice", unusable) is None, "an empty password must not become a log-in as nobody"


@needs_slapd
async def test_password_is_sent_as_it_is(people: Slapd, directory_of: Maker) -> None:
    users = directory_of(config_of(people))
    assert await users.verify("dave", "p\u00e4\u00adss \ue000", address="192.0.2.1")
    for other in ("p\u00e4ss \ue000", "\x01", "\u00ad", "\u0627a", "p\udcff"):
        assert await users.verify("dave", other, address="192.0.2.2") is None
        users.forgive(None)
    assert not users.unreadable(), "a client can make nobody believe that the server is down"


@needs_slapd
async def test_look_up_needs_no_password(people: Slapd, directory_of: Maker) -> None:
    users = directory_of(config_of(people))
    with pytest.raises(UserNotLearnedError):
        users.find("alice@example.org")
    for name, user in {"alice@example.org": "alice", "x@example.org": None, "bob@other.example": "bob"}.items():
        assert await users.ask(name) == user


@needs_slapd
@pytest.mark.parametrize("name", ["*", "alice)(uid=*", "a*", "(", "\\2a", "ali\\63e", "al*ce@example.org", "ä*", "|"])
async def test_name_is_no_part_of_the_filter(people: Slapd, directory_of: Maker, name: str) -> None:
    users = directory_of(config_of(people))
    assert await users.ask(name) is None
    assert not users.unreadable()


@needs_slapd
async def test_all_spellings_that_the_server_takes_are_one_user(people: Slapd, directory_of: Maker) -> None:
    users = directory_of(config_of(people))
    spellings = ("alice", "ALICE", "\uff41lice", "a\uff4cice@example.org", "al\u2170ce")
    assert {name: await users.ask(name) for name in spellings} == dict.fromkeys(spellings, "alice")
    for name in spellings:
        assert await users.verify(name, "wrong", address="192.0.2.1") is None
    assert {one.user for one in users.penalties() if one.user} == {"alice"}, "guessing is slowed for all together"


def test_names_are_escaped() -> None:
    assert escaped("a*(b)\\c\0") == "a\\2a\\28b\\29\\5cc\\00"
    assert escaped("ä=<>&|!%") == "\\c3\\a4\\3d\\3c\\3e\\26\\7c\\21\\25"
    assert filter_for("(|(a=%u)(b=%n)(c=%d))", "%d@e.f") == "(|(a=\\25d@e.f)(b=\\25d)(c=e.f))"
    assert filter_for("(b=%n)(c=%d)", "alone") == "(b=alone)(c=)"


@needs_slapd
async def test_attributes_say_quota_and_who_is_disabled(
    people: Slapd, directory_of: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    users = directory_of(config_of(people))
    for name in ("alice", "bob"):
        await users.ask(name)
    assert await users.quota_limits("alice") == QuotaLimits(1024**3, 5)
    assert await users.quota_limits("bob") == QuotaLimits(5, 7)
    assert users.find("bob") == "bob", "mail for a disabled user is accepted"
    assert users.shuts_out("bob@example.org", None) == f"the user is disabled at {people.ldaps_url}"
    assert users.shuts_out("alice", None) is None
    assert await users.verify("bob", "hidden") is None
    assert not users.holds(Login("bob"))
    assert await users.verify("carol", "quiet") == Login("carol")
    assert await users.quota_limits("carol") == QuotaLimits(5, 5)
    assert "one user has the default quota" in caplog.text
    assert "not 'lots'" in caplog.text


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        ("1000", {"storage_bytes": 1000}),
        ("2GiB", {"storage_bytes": 2 * 1024**3}),
        ("*:storage=3M", {"storage_bytes": 3 * 1024**2}),
        ("*:storage=1000", {"storage_bytes": 1000 * 1024}),
        ("*:bytes=1000", {"storage_bytes": 1000}),
        ("*:storage=1G:messages=10", {"storage_bytes": 1024**3, "messages": 10}),
        ("none", {"storage_bytes": None}),
        ("*:storage=1T", {"storage_bytes": 1024**4}),
        ("0", {"storage_bytes": None}),
        ("unlimited", {"storage_bytes": None}),
        ("*:storage=0", {"storage_bytes": None}),
        ("*:storage=unlimited:messages=unlimited", {"storage_bytes": None, "messages": None}),
        ("*:ignore", {"storage_bytes": None, "messages": None}),
    ],
)
def test_quotas_of_attributes(value: str, limits: dict[str, int | None]) -> None:
    assert quota_of(value) == limits


@pytest.mark.parametrize("value", ["", "lots", "*:octets=3", "-1", "1e9", "*:messages=many", "M"])
def test_quota_that_makes_no_sense(value: str) -> None:
    with pytest.raises(ValueError, match="expected a"):
        quota_of(value)


@needs_slapd
async def test_trial_tells_what_the_server_said(people: Slapd, directory_of: Maker) -> None:
    users = directory_of(config_of(people))
    right, wrong = await users.try_login("alice", "secret"), await users.try_login("alice", "x")
    assert right.origin == wrong.origin == f"{people.ldaps_url}: uid=alice,{BASE}"
    assert (right.reasons, right.answer) == ((), "its log-in answers success")
    assert ([reason.obstacle for reason in wrong.reasons], wrong.answer) == (
        ["wrong_password"],
        "its log-in answers invalidCredentials",
    )
    assert [reason.obstacle for reason in (await users.try_login("bob", "hidden")).reasons] == ["disabled"]
    assert [reason.obstacle for reason in (await users.try_login("nobody", "hidden")).reasons] == ["no_such_user"]


@needs_slapd
async def test_other_identities_find_their_user(people: Slapd, directory_of: Maker) -> None:
    users = directory_of(config_of(people))
    identity = Identity("a.smith@example.org", until_ms=2_000)
    assert await users.admit("alice", identity) == Login("alice", until_ms=2_000)
    assert await users.admit("bob", identity) is None
    assert await users.admit("alice", Identity("nobody", 2_000)) is None
    assert await users.admit("alice", None) is None
    assert users.holds(Login("alice", until_ms=2_000))
    assert not users.holds(Login("alice", until_ms=1_000))


@needs_slapd
async def test_down_server_is_no_missing_user(
    tmp_path: Path,
    directory_of: Maker,
    caplog: pytest.LogCaptureFixture,
    mock_clock: trio.testing.MockClock,
) -> None:
    registry = CollectorRegistry()
    with slapd(tmp_path) as server:
        server.add("alice")
        config = config_of(server)
        users = directory_of(config, registry)
        assert await users.verify("alice", "secret") == Login("alice")
        assert "replicator_user_source_up 1.0" in exposition(registry).decode()
        server.stop()
        assert await users.verify("alice", "secret") == Login("alice"), "it is not asked yet"
        mock_clock.jump(config.cache_s)
        with caplog.at_level(logging.WARNING):
            for name in ("alice", "nobody"):
                with pytest.raises(UsersUnavailableError):
                    await users.verify(name, "secret")
            with pytest.raises(UsersUnavailableError):
                await users.ask("nobody")
            assert await users.ask("alice") == "alice", "mail for whom it knew is accepted"
            with pytest.raises(UsersUnavailableError, match="there is no connection"):
                await users.try_login("alice", "secret")
        assert "there is no connection" in caplog.text
        assert users.holds(Login("alice")), "a session that is open goes on"
        assert "there is no connection" in users.unreadable()[0]
        assert "replicator_user_source_up 0.0" in exposition(registry).decode()
        again = restarted(server)
        try:
            mock_clock.jump(AFTER_FAILURE_S)
            assert await users.verify("alice", "secret") == Login("alice")
            assert not users.unreadable()
        finally:
            again.stop()


@needs_slapd
async def test_session_of_a_removed_user_ends(
    tmp_path: Path, directory_of: Maker, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    answered = trio.Event()

    async def look_up_and_tell(self: LdapSource, name: str) -> Found | None:
        found = await look_up(self, name)
        if name == "alice":  # and not whoever the trial of the server at the start asks about
            answered.set()
        return found

    look_up = LdapSource.look_up
    with slapd(tmp_path) as server:
        server.add("alice")
        config = config_of(server)
        users = directory_of(config)
        login = await users.verify("alice", "secret")
        assert login is not None
        monkeypatch.setattr(LdapSource, "look_up", look_up_and_tell)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(users.run)
            server.delete("alice")
            assert users.holds(login)
            await trio.testing.wait_all_tasks_blocked()
            assert not answered.is_set(), "its answer is good yet"
            mock_clock.jump(config.cache_s)
            assert users.holds(login), "the server has not been asked yet"
            await answered.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert not users.holds(login)
            nursery.cancel_scope.cancel()


@needs_slapd
async def test_right_password_is_known_for_a_while(
    people: Slapd, directory_of: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = directory_of(config_of(people))
    checked = []

    def count(self: LdapSource, dn: str, password: bytes, request: ldap._Request) -> object:
        checked.append(dn)
        return bound(self, dn, password, request)

    bound = LdapSource._bound
    monkeypatch.setattr(LdapSource, "_bound", count)
    for _ in range(3):
        assert await users.verify("alice", "secret") == Login("alice")
    assert len(checked) == 1
    assert await users.verify("alice", "wrong") is None
    assert len(checked) == 2
    assert await users.verify("nobody", "wrong") is None
    assert len(checked) == 3, "the server is asked about somebody who is not there, too"
    assert "secret" not in repr(vars(users))


@needs_slapd
@pytest.mark.parametrize(("idle_s", "connections"), [(60.0, 1), (0.0, 3)])
async def test_searches_share_a_connection_that_is_not_old(
    people: Slapd, directory_of: Maker, monkeypatch: pytest.MonkeyPatch, idle_s: float, connections: int
) -> None:
    opened = []

    def count(self: LdapSource, request: ldap._Request) -> object:
        opened.append(self)
        return connect(self, request)

    connect = LdapSource._service_connection
    monkeypatch.setattr(LdapSource, "_service_connection", count)
    monkeypatch.setattr(ldap, "IDLE_S", idle_s)
    users = directory_of(config_of(people))
    for name in ("alice", "bob", "dave"):
        assert await users.ask(name) == name
    assert len(opened) == connections


@needs_slapd
async def test_failures_delay_further_attempts(people: Slapd, directory_of: Maker) -> None:
    users = directory_of(config_of(people))
    for _ in range(5):
        assert await users.verify("alice@example.org", "wrong", address="192.0.2.1") is None
    (pair,) = [one for one in users.penalties() if one.address == "192.0.2.1" and one.user is not None]
    assert pair.user == "alice"
    assert users.forgive("a.smith@example.org") == 0, "that address has not been looked up"
    assert users.forgive("alice@example.org") == 1


@needs_slapd
async def test_two_entries_are_an_error_of_one_user(
    people: Slapd, directory_of: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    users = directory_of(config_of(people), registry)
    with pytest.raises(UsersUnavailableError):
        await users.ask("twin@example.org")
    assert "one user is not known now" in caplog.text
    assert "replicator_user_source_up 1.0" in exposition(registry).decode()
    with pytest.raises(UsersUnavailableError, match="the filter finds more than one entry"):
        await users.try_login("twin@example.org", "x")
    assert not users.unreadable()


@needs_slapd
async def test_own_name_must_lead_back(people: Slapd, directory_of: Maker) -> None:
    users = directory_of(replace(config_of(people), filter="(mail=%u)"))
    with pytest.raises(UsersUnavailableError):
        await users.ask("alice@example.org")
    with pytest.raises(UsersUnavailableError, match="its user is 'alice', but is not what is found by that name"):
        await users.try_login("alice@example.org", "secret")
    assert not users.unreadable()


@needs_slapd
@pytest.mark.parametrize(
    ("changed", "key", "text"),
    [
        ({"bind_dn": "cn=other,dc=example,dc=org"}, "bind_dn", "was refused: invalidCredentials"),
        ({"bind_dn": None, "password_file": None}, "base", "noSuchObject"),
        ({"password_file": Path("/nowhere")}, "password_file", "cannot be read"),
        ({"base": "ou=none,dc=example,dc=org"}, "base", "noSuchObject"),
        ({"filter": "((uid=%u))("}, "filter", "the search failed"),
        ({"ca": None}, "ca", "cannot be verified: self-signed"),
        ({"ca": OTHER_CA}, "ca", "cannot be verified: self-signed"),
        ({"ca": Path("/nowhere.pem")}, "ca", "/nowhere.pem cannot be used"),
        ({"ca": Path(__file__)}, "ca", "cannot be used"),
        ({"url": "ldaps://127.0.0.1:{port}"}, "url", "certificate is not valid for '127.0.0.1'"),
        (
            {"url": "ldap://localhost:{ldap_port}", "starttls": True, "ca": OTHER_CA},
            "ca",
            "cannot be verified: self-signed",
        ),
        (
            {"url": "ldap://localhost:{ldap_port}", "starttls": True, "ca": None},
            "ca",
            "cannot be verified: self-signed",
        ),
        ({"url": "ldap://127.0.0.1:{ldap_port}", "starttls": True}, "url", "certificate is not valid for '127.0.0.1'"),
        ({"url": "ldap://127.0.0.1:1"}, "url", "there is no connection"),
    ],
)
async def test_what_is_wrong_with_the_settings(
    people: Slapd, tmp_path: Path, changed: dict[str, object], key: str, text: str
) -> None:
    if "url" in changed:
        changed = {**changed, "url": str(changed["url"]).format(port=people.ldaps_port, ldap_port=people.ldap_port)}
    if changed.get("ca") is OTHER_CA:
        changed = {**changed, "ca": tmp_path / "other.pem"}
        trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    config = replace(config_of(people), **changed)  # type: ignore[arg-type]
    fault = await server_faults(config)
    assert fault is not None
    assert fault[0] == key
    assert text in fault[1]


@needs_slapd
async def test_file_of_the_ca_is_read_once(people: Slapd, directory_of: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes tens of milliseconds to read all of a system's CAs, in which the event loop waits, too."""
    made = []

    def count(*_: object, cafile: Path) -> ssl.SSLContext:
        made.append(cafile)
        return make(cafile=cafile)

    make = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", count)
    users = directory_of(config_of(people))
    assert await users.verify("alice", "secret")
    assert len(made) == 1


@needs_slapd
async def test_a_new_file_of_the_ca_counts_once_it_is_read_again(people: Slapd, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(file)
    config = replace(config_of(people), ca=file)
    certificates = Certificates(None, user_server=config)
    context = certificates.for_user_server
    users = users_of_server(config, lambda: 1_000, CollectorRegistry(), context=context)
    with pytest.raises(UsersUnavailableError, match="cannot be verified: self-signed"):
        await users.account("alice")
    await trio.Path(file).write_bytes(await trio.Path(people.ca).read_bytes())
    with pytest.raises(UsersUnavailableError, match="cannot be verified: self-signed"):
        await users.account("alice")
    certificates.install(certificates.read())
    assert await users.account("alice")
    assert list(certificates.files()) == [file], "its end is shown as that of other certificates"
    await trio.Path(file).write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"^\[ldap\] ca: .*ca\.pem cannot be used"):
        certificates.read()
    assert await users.account("bob"), "the last one stays in force"
    users.close()


@needs_slapd
async def test_right_settings_have_no_fault(people: Slapd) -> None:
    assert await server_faults(config_of(people)) is None


async def test_silent_server_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ldap://127.0.0.1:{silent.getsockname()[1]}"
        source = LdapSource(LdapConfig(url, "dc=x", "(uid=%u)", "uid", timeout_s=0.2), lambda: None, Abandoning())
        with pytest.raises(SourceError, match="there was no answer within"):
            await source.look_up("alice")


BOUND = bytes.fromhex("300c02010161070a010004000400")  # the answer to a bind, and what an entry of one attribute is:
ENTRY = bytes.fromhex("301e0201026419040775") + b"id=a,c" + bytes.fromhex("300e300c0403756964310504036162633005")


async def test_nonsense_is_a_failure() -> None:
    rnd, answers = random.Random(5), 0

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async with stream:
                says = bytearray(ENTRY if rnd.random() < 0.5 else BOUND)
                for _ in range(rnd.randint(1, 4)):
                    says[rnd.randrange(len(says))] = rnd.randrange(256)
                await stream.receive_some(4096)
                if len(says) == len(ENTRY):
                    await stream.send_all(BOUND)
                    await stream.receive_some(4096)
                await stream.send_all(bytes(says))

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        url = f"ldap://127.0.0.1:{listener.socket.getsockname()[1]}"
        for _ in range(200):
            source = LdapSource(LdapConfig(url, "c=x", "(uid=%u)", "uid"), lambda: None, Abandoning())
            with suppress(SourceError):
                await source.look_up("alice")
            answers += 1
            source.close()
        nursery.cancel_scope.cancel()
    assert answers == 200
