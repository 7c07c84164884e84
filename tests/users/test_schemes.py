import base64
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.users.schemes import PASSWORD_MAX_BYTES, hash_password, parse_hash

SALTED = base64.b64encode(hashlib.sha256(b"secretsalt").digest() + b"salt").decode()
SALTED_512 = base64.b64encode(hashlib.sha512(b"secretsalt").digest() + b"salt").decode()

# Hashes made by other programs: openssl passwd, argon2-cffi, libxcrypt.
FOREIGN = [
    "{PLAIN}secret",
    "{CLEARTEXT}secret",
    "{plain}secret",
    "{PLAIN.b64}c2VjcmV0",
    "{PLAIN.HEX}736563726574",
    f"{{SSHA256}}{SALTED}",
    f"{{SSHA256.B64}}{SALTED}",
    f"{{SSHA256.hex}}{base64.b64decode(SALTED).hex()}",
    f"{{SSHA512}}{SALTED_512}",
    f"{{SHA256}}{base64.b64encode(hashlib.sha256(b'secret').digest()).decode()}",
    f"{{SHA512.HEX}}{hashlib.sha512(b'secret').hexdigest()}",
    "{SHA512-CRYPT}$6$abcdefgh$ltjgWl6579NluT/Vi1nwEvcil.G5Nbc4NiXZaNGStk8PSwGfQv72N2CKPPrVACtLtip/cZ/1GM/O6IND4WQhG.",
    "{SHA256-CRYPT}$5$abcdefgh$gruCpC7VkOTspMQTTSAR8mtlO9Upms.fwqE5y16JVM.",
    "{CRYPT}$6$abcdefgh$ltjgWl6579NluT/Vi1nwEvcil.G5Nbc4NiXZaNGStk8PSwGfQv72N2CKPPrVACtLtip/cZ/1GM/O6IND4WQhG.",
    "$5$abcdefgh$gruCpC7VkOTspMQTTSAR8mtlO9Upms.fwqE5y16JVM.",
    "{BLF-CRYPT}$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a",
    "{blf-crypt}$2a$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a",
    "{CRYPT}$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a",
    "$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a",
    "{ARGON2ID}$argon2id$v=19$m=64,t=1,p=1$n1pkYWjuwED3HBnQgpYakA$ku/nyeM6RUm4t0M9yGHE+UKDH4kPDd5UyDpCOKM9dKI",
    "{ARGON2I}$argon2i$v=19$m=64,t=1,p=1$TRanBSvUzVvKPb+F1jCBRg$kp8DNPVutluuqA6LUA2ocDwVAGM9yo4YK5Dt+Hc5VYw",
]


@pytest.mark.parametrize("stored", FOREIGN)
def test_foreign_hashes_accept_only_their_password(stored: str) -> None:
    parsed = parse_hash(stored)
    assert parsed.check(b"secret")
    assert not parsed.check(b"Secret")
    assert not parsed.check(b"")
    assert "secret" not in repr(parsed)


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        ("", "there is no password"),
        ("{MD5}x", r"unknown password scheme \{MD5\}; use one of PLAIN"),
        ("{SSHA256}!!!!", r"invalid \{SSHA256\} hash: not base64"),
        ("{SSHA256}YWJj", "3 bytes, where 32 and a salt are expected"),
        (f"{{SHA256}}{SALTED}", "36 bytes, where 32 are expected"),
        ("{SSHA256.ROT13}x", r"unknown encoding \.ROT13; use \.B64 or \.HEX"),
        ("{PLAIN.HEX}xyz", r"invalid \{PLAIN\} hash"),
        ("{SHA512-CRYPT}$6$abc$short", r"invalid \{SHA512-CRYPT\} hash"),
        (
            "{SHA512-CRYPT}$6$rounds=99999999$abc$" + "x" * 86,
            "it needs 99999999 rounds, but at most 5000000 are allowed",
        ),
        ("{ARGON2ID}$argon2id$v=19$m=1", r"invalid \{ARGON2ID\} hash: malformed argon2 hash; set the password again"),
        (
            "{ARGON2ID}$argon2id$v=19$m=1048576,t=2,p=1$SclZS6nVute6V2rtvfe+dw$2/MbkaRsb9nSJLIpz/lq0K95gNQ6B8Tso0VhkxnT5+E",
            "it needs 1048576 KiB of memory",
        ),
        ("{BLF-CRYPT}$2y$05$short", r"invalid \{BLF-CRYPT\} hash: expected \$2y\$"),
        ("{BLF-CRYPT}$2x$05$" + "x" * 53, r"invalid \{BLF-CRYPT\} hash: expected \$2y\$"),
        ("{BLF-CRYPT}$2y$05$" + "0" * 53, r"invalid \{BLF-CRYPT\} hash: expected \$2y\$"),
        ("{BLF-CRYPT}$2y$03$" + "x" * 53, "a cost of two digits"),
        ("{CRYPT}$2y$17$" + "u" * 53, "its cost is 17, but at most 16 is allowed"),
        ("{BLF-CRYPT}$6$abcdefgh$x", r"invalid \{BLF-CRYPT\} hash"),
        ("$1$abc$def", r"only \$2y\$, \$5\$, \$6\$ and \$argon2 hashes are supported"),
    ],
)
def test_broken_hash_is_reported_but_never_shown(stored: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        parse_hash(stored)
    assert not stored or stored not in str(caught.value)


@pytest.mark.parametrize("scheme", ["ARGON2ID", "SHA512-CRYPT", "plain"])
@pytest.mark.parametrize("password", ["a", "p:w\nx y", "пароль €", "x" * PASSWORD_MAX_BYTES])
def test_new_hashes_are_read_back_and_fit_in_a_line(scheme: str, password: str) -> None:
    stored = hash_password(password, scheme)
    assert ":" not in stored
    assert "\n" not in stored
    assert parse_hash(stored).check(password.encode())
    assert not parse_hash(stored).check(password[:-1].encode() or b"b")


def test_bcrypt_looks_at_72_octets_of_a_password() -> None:
    parsed = parse_hash("$2y$05$abcdefghijklmnopqrstuujf8SX2ahXLwp9w/B.Y5XdysS6yR576q")  # of 100 x, by libxcrypt
    assert [parsed.check(b"x" * octets) for octets in (71, 72, 100, PASSWORD_MAX_BYTES)] == [False, True, True, True]
    cyrillic = parse_hash("{BLF-CRYPT}$2y$05$abcdefghijklmnopqrstuuzNhjJbiIwqABDRBuv89/6Oj5r2.TjxC")
    assert cyrillic.check("пароль".encode())


@given(st.from_regex(r"\$2[aby]\$04\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}", fullmatch=True))
@settings(max_examples=30, deadline=None)
def test_whatever_looks_like_bcrypt_can_be_checked(stored: str) -> None:
    assert not parse_hash(stored).check(b"secret")


def test_new_hashes_of_one_password_differ() -> None:
    assert hash_password("x") != hash_password("x")


@pytest.mark.parametrize("password", ["", "a\0b", "x" * (PASSWORD_MAX_BYTES + 1)])
def test_invalid_passwords_are_refused(password: str) -> None:
    with pytest.raises(ValueError, match="a password must have 1 to 1024 bytes and no NUL"):
        hash_password(password)


def test_weak_schemes_make_no_new_hashes() -> None:
    with pytest.raises(ValueError, match=r"cannot create \{SHA256\} hashes; use one of ARGON2ID"):
        hash_password("x", "SHA256")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n\r")))
def test_any_field_parses_or_raises_a_message(field: str) -> None:
    try:
        parse_hash(field)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either outcome is right, as long as it is one of these two
