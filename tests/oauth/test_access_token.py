from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
import trio.testing
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from replicator.config import ALGORITHMS, OauthConfig
from replicator.oauth import AccessTokens, KeySet, ProviderKeys, TokenRefusedError
from replicator.oauth.access_token import LEEWAY_S
from replicator.users import Identity, TokenFault
from tests.oauth.issuer import AUDIENCE, ISSUER, NOW_S, SigningKey, claims_of, encoded, key_set

CONFIG = OauthConfig(ISSUER, AUDIENCE, "https://id.example.org/keys", "email")
ALICE = Identity("alice@example.org", (NOW_S + 300 + LEEWAY_S) * 1000)
KEY = SigningKey("k")


async def tokens(published: bytes, config: OauthConfig = CONFIG) -> AccessTokens:
    """Return the tokens of a provider that publishes these keys."""

    async def read() -> KeySet:
        await trio.lowlevel.checkpoint()
        return KeySet.parse(published, config.algorithms)

    keys = ProviderKeys(read, refresh_s=60)
    keys.install(await read())
    keys._reading = False  # nobody reads them again here
    return AccessTokens(config, keys, lambda: NOW_S * 1000)


async def refusal(token: str, published: bytes | None = None, config: OauthConfig = CONFIG) -> str:
    """Return why the token is refused."""
    checking = await tokens(published or key_set(KEY), config)
    with pytest.raises(TokenRefusedError) as refused:
        await checking.check(token)
    assert token not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_each_signature_by_a_private_key_is_known(algorithm: str) -> None:
    key = SigningKey("k", algorithm)
    checking = await tokens(key_set(SigningKey("other", "RS256", 1), key))
    assert await checking.check(key.token()) == ALICE
    forged = replace(key, which=2).token()
    with pytest.raises(TokenRefusedError, match="its signature is not right"):
        await checking.check(forged)
    without = replace(CONFIG, algorithms=tuple(each for each in ALGORITHMS if each != algorithm))
    assert f"it is signed by {algorithm}, and only" in await refusal(
        key.token(), key_set(SigningKey("k", "RS256"), SigningKey("k", "ES256", 3), key), without
    )


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "HS512", "", 5, None, ["ES256"]])
async def test_other_algorithms_are_refused(algorithm: object) -> None:
    assert "and only RS256" in await refusal(KEY.token({"alg": algorithm}))


async def test_unsigned_token_is_refused() -> None:
    head, body = (encoded(json.dumps(each).encode()) for each in ({"alg": "none"}, claims_of()))
    for signature in ("", encoded(b"x")):
        assert "it is signed by none" in await refusal(f"{head}.{body}.{signature}")


async def test_public_key_is_no_secret_for_hmac() -> None:
    """RFC 8725 section 2.1: whoever has the public key could sign, if it were taken for a key of HMAC."""
    key = SigningKey("k", "RS256")
    public = key.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    jwk = key.jwk()
    for secret in (public, json.dumps(jwk).encode(), str(jwk["n"]).encode()):
        signed = KEY.token({"alg": "HS256"}).rpartition(".")[0]
        token = f"{signed}.{encoded(hmac.digest(secret, signed.encode(), hashlib.sha256))}"
        assert "it is signed by HS256" in await refusal(token, key_set(key))


@pytest.mark.parametrize(("algorithm", "key"), [("RS256", KEY), ("ES384", KEY), ("PS256", SigningKey("k", "Ed25519"))])
async def test_key_of_another_kind_is_not_used(algorithm: str, key: SigningKey) -> None:
    said = await refusal(key.token({"alg": algorithm}), key_set(key))
    assert said == f"the provider has no keys with the id k for {algorithm}"


async def test_key_is_used_for_what_it_is_published_for() -> None:
    key = SigningKey("k", "RS512")
    for member, value in (("alg", "RS256"), ("use", "enc"), ("key_ops", ["sign"]), ("key_ops", "verify"), ("alg", 5)):
        published = key_set(KEY, key.jwk(**{member: value}))
        assert await refusal(key.token(), published) == "the provider has no keys with the id k for RS512"
    published = key_set(key.jwk(alg="RS512", use="sig", key_ops=["verify"]))
    assert await (await tokens(published)).check(key.token()) == ALICE


async def test_key_without_an_id_must_be_the_only_one() -> None:
    other = SigningKey("other", which=1)
    assert await (await tokens(key_set(KEY, SigningKey("r", "RS256")))).check(KEY.token({"kid": None})) == ALICE
    said = await refusal(KEY.token({"kid": None}), key_set(KEY, other))
    assert said == "the provider has 2 keys without an id for ES256"
    assert "2 keys with the id k for" in await refusal(KEY.token(), key_set(KEY, replace(other, kid="k")))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": NOW_S - LEEWAY_S}, "it has expired at 2027-01-15T07:59:00Z"),
        ({"exp": None}, "it has no time at which it expires (exp)"),
        ({"exp": str(NOW_S + 300)}, f"its time exp is {NOW_S + 300}, not seconds since 1970"),
        ({"exp": True}, "its time exp is true, not seconds since 1970"),
        ({"exp": -1}, "its time exp is -1, not seconds since 1970"),
        ({"exp": 2**60}, f"its time exp is {2**60}, not seconds since 1970"),
        ({"exp": float("nan")}, "its time exp is NaN, not seconds since 1970"),
        ({"exp": float("inf")}, "its time exp is Infinity, not seconds since 1970"),
        ({"nbf": NOW_S + LEEWAY_S + 1}, "it is not valid before 2027-01-15T08:01:01Z; check the clocks"),
        ({"nbf": []}, "its time nbf is [], not seconds since 1970"),
        ({"iss": ISSUER + "/"}, f"its issuer is {ISSUER}/, not {ISSUER}"),
        ({"iss": None}, f"its issuer is missing, not {ISSUER}"),
        ({"iss": [ISSUER]}, f'its issuer is ["{ISSUER}"], not {ISSUER}'),
        ({"aud": "web"}, "its audience is web, not mail"),
        ({"aud": ["web", {"mail": 1}]}, 'its audience is ["web", {"mail": 1}], not mail'),
        ({"aud": None}, "its audience is missing, not mail"),
        ({"aud": "email"}, "its audience is email, not mail"),
        ({"cnf": {"jkt": "x"}}, "it is bound to a key of the client's (cnf), so it is no Bearer token"),
        ({"email": None}, "it names no user: its claim email is missing"),
        ({"email": ["alice"]}, 'it names no user: its claim email is ["alice"]'),
        ({"email": ""}, "it names no user: its claim email is "),
        ({"email": "x" * 255}, f"it names no user: its claim email is {'x' * 57}..."),
        ({"email_verified": False}, "the provider has not verified that the user has the address alice@example.org"),
        ({"email_verified": []}, "the provider has not verified that the user has the address alice@example.org"),
    ],
)
async def test_claims_decide(claims: Mapping[str, object], why: str) -> None:
    assert await refusal(KEY.token(**claims)) == why


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW_S - LEEWAY_S + 1},
        {"exp": NOW_S + 0.5},
        {"nbf": NOW_S + LEEWAY_S},
        {"aud": ["web", "mail"]},
        {"email_verified": True},
        {"email_verified": "true"},
    ],
)
async def test_these_claims_are_good(claims: Mapping[str, object]) -> None:
    assert (await (await tokens(key_set(KEY))).check(KEY.token(**claims))).name == "alice@example.org"


async def test_other_claim_may_name_the_user() -> None:
    checking = await tokens(key_set(KEY), replace(CONFIG, claim="sub"))
    assert (await checking.check(KEY.token(email_verified=False))).name == "4711"


@pytest.mark.parametrize(
    ("granted", "lacks"),
    [
        ({"scope": "imap openid"}, None),
        ({"scope": ["imap", "openid"]}, None),
        ({"scp": "openid imap"}, None),
        ({"scp": ["openid"], "scope": "imap"}, None),
        ({"scope": "imap"}, "openid"),
        ({"scope": "IMAP openids"}, "imap openid"),
        ({"scope": {"imap": 1}, "scp": [["imap"], 5]}, "imap openid"),
        ({}, "imap openid"),
    ],
)
async def test_all_scopes_are_required(granted: Mapping[str, object], lacks: str | None) -> None:
    config = replace(CONFIG, scopes=("imap", "openid"))
    checking = await tokens(key_set(KEY), config)
    if lacks is None:
        assert await checking.check(KEY.token(**granted)) == ALICE
        return
    with pytest.raises(TokenRefusedError, match=f"^it lacks the scope {lacks}$") as refused:
        await checking.check(KEY.token(**granted))
    assert refused.value.fault is TokenFault.INSUFFICIENT_SCOPE


@pytest.mark.parametrize("kind", ["JWT", "at+jwt", "application/AT+JWT", None])
async def test_types_of_access_tokens(kind: object) -> None:
    assert await (await tokens(key_set(KEY))).check(KEY.token({"typ": kind})) == ALICE


@pytest.mark.parametrize("kind", ["logout+jwt", "dpop+jwt", "", 5, ["JWT"]])
async def test_tokens_for_other_uses_are_refused(kind: object) -> None:
    assert (await refusal(KEY.token({"typ": kind}))).endswith("so it is no access token")


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        ({"kid": 5}, None),
        ({"crit": ["x"], "x": 1}, None),
        ({"b64": False, "crit": ["b64"]}, None),
        ({}, b"[]"),
        ({}, b"null"),
        ({}, b"\xff"),
        ({}, b"[" * 10_000),
        ({}, b'{"exp": ' + b"9" * 5000 + b"}"),
    ],
)
async def test_what_makes_no_sense_is_refused(header: Mapping[str, object], payload: bytes | None) -> None:
    assert await refusal(KEY.token(header, payload))


@given(st.text("eyJ.-_=+~/x\0é", max_size=40) | st.binary(max_size=20).map(lambda head: f"{encoded(head)}.e30.eA"))
async def test_any_text_is_refused(token: str) -> None:
    checking = await tokens(key_set(KEY))
    assert await checking.claimed_name(token) is None
    with pytest.raises(TokenRefusedError):
        await checking.check(token)


@given(st.data())
async def test_altered_token_is_refused(data: st.DataObject) -> None:
    token = KEY.token()
    at = data.draw(st.integers(0, len(token) - 1))
    altered = (
        token[:at] + data.draw(st.sampled_from("Aa0_-.").filter(lambda other: other != token[at])) + token[at + 1 :]
    )
    with pytest.raises(TokenRefusedError):
        await (await tokens(key_set(KEY))).check(altered)


async def test_whom_a_token_names_is_told_whoever_signed_it() -> None:
    checking = await tokens(key_set(KEY))
    assert await checking.claimed_name(KEY.token({"alg": "HS256"}, exp=0)) == "alice@example.org"
    assert await checking.claimed_name(KEY.token(email=5)) is None
