# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
"""OAUTHBEARER (RFC 7628) and XOAUTH2 at the door, with tokens of a provider whose keys lie in memory."""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from replicator.config import ALGORITHMS, LimitsConfig, OauthConfig
from replicator.errors import ConfigError
from replicator.imap.handlers.telling import LOGIN_CHECK_S
from replicator.imap.services import ImapServices
from replicator.oauth import AccessTokens, KeySet, ProviderKeys
from replicator.runtime.metrics import ImapMetrics, RefusalMetrics
from replicator.users import UserDirectory, add_user, delete_user, set_disabled, set_password
from tests.imap.access.farewells import EXPIRED
from tests.imap.arrangements import ARRANGEMENTS
from tests.imap.client import Client, connected, services
from tests.oauth.issuer import AUDIENCE, ISSUER, NOW_S, SigningKey, key_set
from tests.one_door import remote_users
from tests.one_node import HookedMail, run_inline

KEY = SigningKey("k")
CONFIG = OauthConfig(ISSUER, AUDIENCE, "https://id.example.org/keys", "email", scopes=("imap",))
NO = "a NO [AUTHENTICATIONFAILED] The access token is not accepted; the server's log says why"
INVALID = {"status": "invalid_token", "scope": "imap"}
FORMS = ("OAUTHBEARER", "XOAUTH2")


@dataclass
class Clock:
    now_s: float = NOW_S

    def __call__(self) -> int:
        return int(self.now_s * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=ARRANGEMENTS)
async def served(
    path: Path, mail: HookedMail, clock: Clock, request: pytest.FixtureRequest
) -> AsyncIterator[ImapServices]:
    async def down() -> KeySet:
        await trio.lowlevel.checkpoint()
        raise ConfigError("it is down")

    keys = ProviderKeys(down, refresh_s=60)
    keys.install(KeySet.parse(key_set(KEY), ALGORITHMS))
    keys._reading = False
    users = UserDirectory(path, run_in_thread=run_inline, clock_ms=clock)
    tokens = AccessTokens(CONFIG, keys, clock)
    if request.param == "in the core":
        yield replace(services(mail), users=users, tokens=tokens)
        return
    here = UserDirectory(path, clock_ms=clock, key=users.key)
    async with remote_users(users, here, tokens) as (users_apart, tokens_apart):
        yield replace(services(mail), users=users_apart, tokens=tokens_apart)


def token(**claims: object) -> str:
    return KEY.token(**{"scope": "imap", **claims})


def message(form: str, shown: str, user: str = "") -> bytes:
    """Return the client's message in one of the two forms."""
    if form == "XOAUTH2":
        return f"user={user}\1auth=Bearer {shown}\1\1".encode()
    named = f"a={user}" if user else ""
    return f"n,{named},\1host=mail.example.org\1port=143\1auth=Bearer {shown}\1\1".encode()


async def say(client: Client, form: str, said: bytes, *, early: bool = True) -> str:
    """Begin a login. Return what the server says to the client's message."""
    encoded = b64encode(said).decode()
    if early:
        await client.send(f"a AUTHENTICATE {form} {encoded}\r\n")
    else:
        await client.send(f"a AUTHENTICATE {form}\r\n")
        assert await client.line() == "+ "
        await client.send(encoded + "\r\n")
    return await client.line()


def told(challenge: str) -> object:
    assert challenge.startswith("+ ")
    return json.loads(b64decode(challenge[2:]))


async def refused(client: Client, form: str, said: bytes) -> object:
    """Show a token that is refused. Return what the challenge tells."""
    challenge = told(await say(client, form, said))
    await client.send("AQ==\r\n" if form == "OAUTHBEARER" else "\r\n")
    answer = await client.line()
    assert answer == NO or answer.startswith("* BYE 5 attempts have failed")
    return challenge


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("user", ["", "alice", "Alice@Example.org", "alice+x@elsewhere.example"])
async def test_token_logs_its_user_in(served: ImapServices, form: str, user: str, *, early: bool) -> None:
    async with connected(served) as client:
        assert "AUTH=OAUTHBEARER AUTH=XOAUTH2 AUTH=PLAIN" in (await client.run("CAPABILITY"))[0]
        assert (await say(client, form, message(form, token(), user), early=early)).startswith("a OK [CAPABILITY ")
        assert (await client.run("SELECT INBOX"))[-1].startswith("t OK")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "refusal",
    [
        ({"exp": NOW_S - 100}, "alice", "the token is refused: it has expired at 2027-01-15T07:58:20Z"),
        ({"aud": "web"}, "", "the token is refused: its audience is web, not mail"),
        ({}, "bob", "the token is for alice@example.org, who is no user here or not the one that the client names"),
        (
            {"email": "carol@example.org"},
            "",
            "the token is for carol@example.org, who is no user here or not the one that the client names",
        ),
        (
            {"email": "carol@example.org"},
            "carol@example.org",
            "the token is for carol@example.org, who is no user here or not the one that the client names",
        ),
    ],
)
async def test_why_a_token_is_refused_is_logged(
    served: ImapServices,
    caplog: pytest.LogCaptureFixture,
    form: str,
    refusal: tuple[dict[str, object], str, str],
) -> None:
    claims, user, why = refusal
    caplog.set_level(logging.DEBUG)
    registry, shown = CollectorRegistry(), token(**claims)
    async with connected(replace(served, metrics=ImapMetrics(registry))) as client:
        expected = INVALID if form == "OAUTHBEARER" else {"status": "401", "schemes": "bearer", "scope": "imap"}
        assert await refused(client, form, message(form, shown, user)) == expected
        assert (await client.run("NOOP"))[-1].startswith("t OK")
    name = user or claims.get("email", "alice@example.org")
    [said] = [each.getMessage() for each in caplog.records if each.name == "replicator.imap.handlers.auth"]
    assert said == f'login failed user={name} client=127.0.0.1 mechanism={form} reason="{why}"'
    assert not any(part in caplog.text for part in shown.split("."))
    assert registry.get_sample_value("replicator_imap_logins_total", {"result": "failed"}) == 1


@pytest.mark.parametrize("form", FORMS)
async def test_missing_scope_is_told(served: ImapServices, form: str) -> None:
    async with connected(served) as client:
        challenge = await refused(client, form, message(form, token(scope="openid")))
    status = "insufficient_scope" if form == "OAUTHBEARER" else "403"
    assert isinstance(challenge, dict)
    assert (challenge["status"], challenge["scope"]) == (status, "imap")


async def test_client_may_ask_for_the_scope_by_an_empty_token(
    served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    """RFC 7628 section 4.3. Nobody is delayed for that."""
    before = trio.current_time()
    for _ in range(3):
        async with connected(served) as client:
            for _ in range(4):
                said = b"n,a=alice@example.org,\1host=mail.example.org\1port=143\1auth=\1\1"
                assert await refused(client, "OAUTHBEARER", said) == INVALID
    assert trio.current_time() == before


async def test_challenge_may_be_answered_by_giving_up(served: ImapServices) -> None:
    """RFC 7628 section 3.2.3, RFC 3501 section 6.2.2."""
    async with connected(served) as client:
        assert told(await say(client, "OAUTHBEARER", message("OAUTHBEARER", "x"))) == INVALID
        await client.send("*\r\n")
        assert await client.line() == "a BAD Authentication cancelled"
        assert (await say(client, "OAUTHBEARER", message("OAUTHBEARER", token()))).startswith("a OK")


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("OAUTHBEARER", b""),
        ("OAUTHBEARER", b"\1"),
        ("OAUTHBEARER", b"n,,\1\1"),
        ("OAUTHBEARER", b"p=tls-unique,,\1auth=Bearer x\1\1"),
        ("OAUTHBEARER", b"n,a=al=ice,\1auth=Bearer x\1\1"),
        ("OAUTHBEARER", b"n,,\1auth=Bearer x\1auth=Bearer y\1\1"),
        ("OAUTHBEARER", b"n,,\1auth=Basic x\1\1"),
        ("OAUTHBEARER", b"n,,\1auth=Bearer x y\1\1"),
        ("OAUTHBEARER", b"n,,\1auth=Bearer x\1"),
        ("OAUTHBEARER", b"n,,\1auth=Bearer x\1\1more"),
        ("OAUTHBEARER", b"n,,\1auth=Bearer \xff\1\1"),
        ("OAUTHBEARER", message("XOAUTH2", "x", "alice")),
        ("XOAUTH2", b"user=alice\1auth=Bearer x\1"),
        ("XOAUTH2", b"user=alice\1host=x\1\1"),
        ("XOAUTH2", b"user=alice\0bob\1auth=Bearer x\1\1"),
        ("XOAUTH2", message("OAUTHBEARER", "x", "alice")),
    ],
)
async def test_nonsense_ends_the_exchange_only(served: ImapServices, form: str, said: bytes) -> None:
    async with connected(served) as client:
        for early in (True, False):
            assert (await say(client, form, said, early=early)).startswith("a BAD Expected ")
        assert (await say(client, form, message(form, token()))).startswith("a OK")


async def test_names_may_have_commas_and_equals_signs(served: ImapServices, path: Path) -> None:
    """RFC 5801 section 4."""
    add_user(path, "a,b=c", "secret", scheme="PLAIN")
    async with connected(served) as client:
        said = message("OAUTHBEARER", token(email="A,b=c"), "a=2Cb=3Dc")
        assert (await say(client, "OAUTHBEARER", said)).startswith("a OK")


async def test_tokens_travel_as_passwords_do(served: ImapServices) -> None:
    for address, secure, announced in (("192.0.2.7", False, False), ("192.0.2.7", True, True)):
        async with connected(served, address=address, secure=secure) as client:
            assert ("AUTH=OAUTHBEARER" in (await client.run("CAPABILITY"))[0]) is announced
            said = await say(client, "XOAUTH2", message("XOAUTH2", token()))
            assert said.startswith("a OK" if announced else "a NO [PRIVACYREQUIRED]")


async def test_nobody_logs_in_by_a_token_without_a_provider(served: ImapServices) -> None:
    async with connected(replace(served, tokens=None)) as client:
        assert "BEARER" not in (await client.run("CAPABILITY"))[0]
        said = await say(client, "OAUTHBEARER", message("OAUTHBEARER", token()))
        assert said == "a NO [CANNOT] Mechanism OAUTHBEARER is not supported here; use PLAIN"


async def test_huge_token_is_refused_and_counted(served: ImapServices) -> None:
    registry, limit = CollectorRegistry(), 2000
    limits = LimitsConfig(imap_token_bytes=limit)
    padding = {"x": "y" * limit}
    async with connected(replace(served, limits=limits, refusals=RefusalMetrics(registry))) as client:
        said = await say(client, "OAUTHBEARER", message("OAUTHBEARER", token(**padding)))
        assert said == "a NO [LIMIT] The access token is longer than 2000 bytes"
        assert (await say(client, "OAUTHBEARER", message("OAUTHBEARER", token()))).startswith("a OK")
    counted = registry.get_sample_value("replicator_refusals_total", {"door": "imap", "limit": "imap_token_bytes"})
    assert counted == 1


async def test_largest_limit_of_a_token_can_be_sent(served: ImapServices) -> None:
    [largest] = [key.metadata["highest"] for key in LimitsConfig.__dataclass_fields__.values() if "token" in key.name]
    padding = largest * 3 // 4 - 500
    shown = token(x="y" * padding)
    assert len(shown) < largest < len(shown) + 1000
    async with connected(replace(served, limits=LimitsConfig(imap_token_bytes=largest))) as client:
        for early in (True, False):
            assert "status" in str(
                told(await say(client, "XOAUTH2", message("XOAUTH2", shown[:-5] + "AAAAA"), early=early))
            )
            await client.send("\r\n")
            assert await client.line() == NO
        assert (await say(client, "XOAUTH2", message("XOAUTH2", shown))).startswith("a OK")


async def test_login_is_to_be_tried_again_while_there_are_no_keys(
    served: ImapServices, clock: Clock, autojump_clock: trio.testing.MockClock
) -> None:
    async def read() -> KeySet:
        await trio.lowlevel.checkpoint()
        raise ConfigError("it is down")

    keys = ProviderKeys(read, refresh_s=60)
    async with connected(replace(served, tokens=AccessTokens(CONFIG, keys, clock))) as client:
        said = await say(client, "OAUTHBEARER", message("OAUTHBEARER", token()))
        assert said == "a NO [UNAVAILABLE] the identity provider's keys cannot be read now; try again later"


async def test_failures_end_the_connection_and_delay_the_next_attempts(
    served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    said = message("OAUTHBEARER", token(exp=0), "alice")
    async with connected(served) as client:
        for _ in range(5):
            await refused(client, "OAUTHBEARER", said)
        assert await client.line() == NO
        assert await client.line() == ""
    before = trio.current_time()
    async with connected(served) as client:
        await refused(client, "OAUTHBEARER", said)
        assert trio.current_time() - before >= 0.5
        before = trio.current_time()
        assert (await say(client, "OAUTHBEARER", message("OAUTHBEARER", token(email="bob@x")))).startswith("a OK")
        assert trio.current_time() == before


async def test_session_ends_with_its_token(
    served: ImapServices, clock: Clock, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(served) as client, connected(served) as idling:
        for one in (client, idling):
            assert (await say(one, "OAUTHBEARER", message("OAUTHBEARER", token()))).startswith("a OK")
        await idling.send("i IDLE\r\n")
        assert await idling.line() == "+ idling"
        clock.now_s += 359
        assert (await client.run("NOOP"))[-1].startswith("t OK")
        clock.now_s += 1
        assert await client.run("NOOP") == [EXPIRED, ""]
        await trio.sleep(LOGIN_CHECK_S)
        assert await idling.until("i") == [EXPIRED, ""]


async def test_session_ends_with_its_user_and_not_with_the_password(served: ImapServices, path: Path) -> None:
    async with connected(served) as client:
        assert (await say(client, "OAUTHBEARER", message("OAUTHBEARER", token()))).startswith("a OK")
        set_password(path, "alice", "other", scheme="PLAIN")
        assert (await client.run("NOOP"))[-1].startswith("t OK")
        delete_user(path, "alice")
        assert (await client.run("NOOP"))[0] == EXPIRED


async def test_user_without_a_password_logs_in_by_a_token(served: ImapServices, path: Path) -> None:
    path.write_text("alice:*\nbob:{PLAIN}secret\n", "utf-8")  # noqa: ASYNC240 - a small file
    assert UserDirectory(path).problems() == []
    async with connected(served) as client:
        assert (await client.run('LOGIN alice "*"'))[-1].startswith("t NO [AUTHENTICATIONFAILED]")
        assert (await say(client, "OAUTHBEARER", message("OAUTHBEARER", token()))).startswith("a OK")


async def test_disabled_user_is_shut_out_and_the_log_says_why(
    served: ImapServices, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with connected(served) as client, connected(served) as again:
        assert (await say(client, "OAUTHBEARER", message("OAUTHBEARER", token()))).startswith("a OK")
        set_disabled(path, "alice", disabled=True)
        assert (await client.run("NOOP"))[0] == EXPIRED
        assert await refused(again, "OAUTHBEARER", message("OAUTHBEARER", token())) == INVALID
    said = [each.getMessage() for each in caplog.records if each.name == "replicator.imap.handlers.auth"]
    assert 'mechanism=OAUTHBEARER reason="the user is disabled' in said[-1]
