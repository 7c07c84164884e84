from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from hypothesis import given
from hypothesis import strategies as st

from replicator.config import ALGORITHMS
from replicator.oauth import KeySet, KeySetError
from replicator.oauth.key_set import KEYS_MAX
from tests.oauth.issuer import SigningKey, encoded, key_set, number

KEY = SigningKey("k")


@pytest.mark.parametrize(
    ("published", "why"),
    [
        (b"", "it is not JSON"),
        (b"<html>", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it is not a JWKS"),
        (b'{"keys": {}}', "it is not a JWKS"),
        (b'{"keys": []}', "it has no keys; use the address at which the provider publishes"),
        (json.dumps({"keys": [{}] * (KEYS_MAX + 1)}).encode(), "it has 101 keys; at most 100 are allowed"),
        (key_set({"kty": "oct", "k": encoded(b"x" * 32), "alg": "HS256"}), "none of its 1 keys is a public key"),
        (key_set(SigningKey("k", "RS256", bits=1024)), "none of its 1 keys"),
        (key_set({"kty": "RSA", "n": number(2**9000 + 1), "e": "AQAB"}), "none of its 1 keys"),
        (key_set({"kty": "RSA", "n": number(2**2047 + 1), "e": "Ag"}), "none of its 1 keys"),
        (key_set(KEY.jwk(x=encoded(b"\1" * 32))), "none of its 1 keys"),  # not on the curve
        (key_set(KEY.jwk(crv="secp256k1")), "none of its 1 keys"),
        (key_set(KEY.jwk(crv=["P-256"])), "none of its 1 keys"),
        (key_set(KEY.jwk(kty=[])), "none of its 1 keys"),
        (key_set(KEY.jwk(kid=5)), "none of its 1 keys"),
        (key_set(KEY.jwk(y=None)), "none of its 1 keys"),
        (key_set({"kty": "OKP", "crv": "Ed25519", "x": "eA"}), "none of its 1 keys"),
        (key_set({"kty": "OKP", "crv": "Ed448", "x": encoded(b"x" * 57)}), "none of its 1 keys"),
    ],
)
def test_what_holds_no_key_is_refused(published: bytes, why: str) -> None:
    with pytest.raises(KeySetError, match=f"^{why}"):
        KeySet.parse(published, ALGORITHMS)


def test_keys_that_make_no_sense_are_left_out() -> None:
    keys = KeySet.parse(key_set({"kty": "RSA"}, KEY, {"kty": "X"}), ALGORITHMS)
    assert [key.kid for key in keys.keys] == ["k"]
    with_others = KeySet.parse(json.dumps({"keys": [5, None, KEY.jwk()]}).encode(), ALGORITHMS)
    assert with_others == keys


def test_private_part_of_a_published_key_is_not_kept() -> None:
    private = KEY.private.private_numbers()  # type: ignore[union-attr]
    keys = KeySet.parse(key_set(KEY.jwk(d=encoded(private.private_value.to_bytes(32, "big")))), ALGORITHMS)  # type: ignore[union-attr]
    assert isinstance(keys.keys[0].public, EllipticCurvePublicKey)


def test_keys_are_chosen_by_id_and_signature() -> None:
    keys = KeySet.parse(key_set(KEY, SigningKey("r", "RS256")), ("ES256", "PS256"))
    assert [key.kid for key in keys.fitting("r", "PS256")] == ["r"]
    assert not keys.fitting("r", "RS256")
    assert not keys.fitting("r", "ES256")
    assert [key.kid for key in keys.fitting(None, "ES256")] == ["k"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["AQAB", "P-256"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
MEMBERS = st.sampled_from(["kty", "crv", "n", "e", "x", "y", "alg", "use", "key_ops", "kid"])


@given(st.lists(st.dictionaries(MEMBERS, JSON | st.sampled_from(["RSA", "EC", "OKP", "Ed25519"])), max_size=4))
def test_any_json_is_a_key_set_or_refused(listed: list[object]) -> None:
    try:
        keys = KeySet.parse(json.dumps({"keys": listed}).encode(), ALGORITHMS)
    except KeySetError:
        return
    assert keys.keys
