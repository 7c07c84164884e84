from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pytest
import trio
import trio.testing

from replicator.users import (
    ClientFirst,
    ScramAttempt,
    ScramError,
    ScramExchange,
    ScramKeys,
    UserDirectory,
    add_user,
    set_password,
)
from replicator.users.passwd_file.table import SECRET
from replicator.users.schemes import parse_hash
from tests.one_node import run_inline
from tests.scram_client import ScramClient

# The exchange of RFC 7677 section 3.
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
KEYS = ScramKeys.of_password("pencil", SALT, 4096)
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
LAST = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
ANSWER = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(first: bytes = FIRST, binding: bytes = b"") -> ScramExchange:
    return ScramExchange(ClientFirst.parse(first), KEYS, NONCE, binding)


def test_the_exchange_of_the_rfc() -> None:
    assert exchange().challenge() == CHALLENGE
    attempt = exchange().attempt(LAST)
    assert attempt.is_right()
    assert attempt.answer() == ANSWER


@pytest.mark.parametrize("proof", [b"eHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"dHzb", b"A" * 44])
def test_another_proof_is_wrong(proof: bytes) -> None:
    assert not exchange().attempt(LAST.partition(b",p=")[0] + b",p=" + proof).is_right()


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (b"", "Expected a first message"),
        (b"n,,n=user", "Expected a first message"),
        (b"n,,n=,r=x", "Expected a first message"),
        (b"x,,n=user,r=x", "Expected a first message"),
        (b"p=,,n=user,r=x", "Expected a first message"),
        (b"n,,n=us\0er,r=x", "Expected a first message"),
        (b"n,,n=user,r=\xff", "Expected a first message"),
        (b"n,,n=user,r=x,", "Expected a first message"),
        (b"n,,n=us=er,r=x", "In a name of SCRAM"),
        (b"n,a==2c,n=user,r=x", "In a name of SCRAM"),
        (b"n,,m=new,n=user,r=x", "Mandatory extensions"),
    ],
)
def test_malformed_first_messages_are_refused(first: bytes, problem: str) -> None:
    with pytest.raises(ScramError, match=problem):
        ClientFirst.parse(first)


def test_first_messages_are_read() -> None:
    first = ClientFirst.parse("p=tls-exporter,a=b=3Dc,n=ü=2C=3D,r=x%,z=more".encode())
    assert first[:5] == ("ü,=", "b=c", "p", "tls-exporter", "x%")
    assert first.header + first.bare == "p=tls-exporter,a=b=3Dc,n=ü=2C=3D,r=x%,z=more"
    assert ClientFirst.parse(b"y,,n=u,r=x")[1:4] == (None, "y", None)


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (b"", "Expected a last message"),
        (LAST.replace(b"r=r", b"r=R"), "The nonce is not the one"),
        (LAST.replace(b"biws", b"eSws"), "The channel binding is another one"),
        (LAST.replace(b"biws", b"biw"), "Expected base64"),
        (LAST[:-1], "Expected base64"),
        (LAST[:-3] + b"\xff", "Expected a last message"),
    ],
)
def test_malformed_last_messages_are_refused(last: bytes, problem: str) -> None:
    with pytest.raises(ScramError, match=problem):
        exchange().attempt(last)


def test_a_bound_channel_must_be_the_same_at_both_ends() -> None:
    """RFC 5802 section 5.1: the client's last message repeats the header and the data of the channel binding."""
    client = ScramClient("user", "pencil", "p=tls-server-end-point,,", b"hash")
    ours = exchange(client.first().encode(), b"hash")
    assert ours.attempt(client.last(ours.challenge().decode()).encode()).is_right()
    theirs = exchange(client.first().encode(), b"another hash")
    with pytest.raises(ScramError, match="somebody may be between you and this server"):
        theirs.attempt(client.last(theirs.challenge().decode()).encode())


def test_stored_form_is_that_of_dovecot() -> None:
    """As `doveadm pw -s SCRAM-SHA-256` prints it: iterations, salt, StoredKey, ServerKey."""
    stored = "{SCRAM-SHA-256}" + str(KEYS)
    parsed = parse_hash(stored)
    assert parsed.scram == KEYS
    assert parsed.check(b"pencil")
    assert not parsed.check(b"Pencil")
    assert not parsed.check(b"\xff")
    assert not parsed.check("\u0627x".encode())  # forbidden by RFC 4013 section 2.4
    assert "stored_key" not in repr(parsed.scram)
    assert parse_hash(stored).check("pen\u00adcil".encode())  # RFC 4013: a soft hyphen maps to nothing


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("4096", "expected iterations,salt,StoredKey,ServerKey"),
        (str(KEYS).replace("4096", "4095"), "it has 4095 iterations, where 4096 to 5000000"),
        (str(KEYS).replace("4096", "5000001"), "it has 5000001 iterations"),
        (str(KEYS).replace("4096", "-1"), "expected iterations"),
        (str(KEYS)[:-1], "not base64"),
        (str(KEYS).replace("W22ZaJ0SNY7soEsUEjb6gQ==", ""), "expected a salt"),
        (str(KEYS)[:-4], "two keys of 32"),
    ],
)
def test_bad_stored_forms_are_refused(value: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_hash("{SCRAM-SHA-256}" + value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "users.passwd"
    path.write_text(f"alice:{{SCRAM-SHA-256}}{KEYS}\nbob:{{PLAIN}}secret\n")
    return path


def made_by(password: str, keys: ScramKeys) -> ScramAttempt:
    client = ScramClient("alice", password)
    made = ScramExchange(ClientFirst.parse(client.first().encode()), keys, "x")
    return made.attempt(client.last(made.challenge().decode()).encode())


async def test_only_the_password_logs_in(path: Path) -> None:
    users = UserDirectory(path, run_in_thread=run_inline)
    assert users.has_scram()
    assert not users.has_scram(for_all=True)
    login = await users.verify_scram("Alice@Example.org", made_by("pencil", users.scram_keys("alice")))
    assert login is not None
    assert login.user == "alice"
    assert users.holds(login)
    assert await users.verify_scram("alice", made_by("Pencil", users.scram_keys("alice"))) is None
    # Nobody else logs in by the keys of alice, and nobody by keys that are no longer hers.
    right = made_by("pencil", users.scram_keys("alice"))
    assert await users.verify_scram("bob", right) is None
    assert await users.verify_scram("nobody", right) is None
    set_password(path, "alice", "pencil", scheme="SCRAM-SHA-256")
    assert await users.verify_scram("alice", right) is None
    assert not users.holds(login)
    assert (await users.verify("alice", "pencil")) is not None


async def test_failures_delay_the_next_attempt(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    users = UserDirectory(path, run_in_thread=run_inline)
    wrong = made_by("Pencil", users.scram_keys("alice"))
    for _ in range(10):
        assert await users.verify_scram("alice", wrong) is None
    assert autojump_clock.current_time() > 20
    before = autojump_clock.current_time()
    assert await users.verify("alice", "guess") is None  # of any mechanism
    assert autojump_clock.current_time() - before > 5


def test_salts_do_not_tell_who_is_a_user(path: Path) -> None:
    """One that cannot log in by SCRAM looks as one that can: always one salt, under all names and at all nodes."""
    add_user(path, "carol", "x", scheme="SCRAM-SHA-256")
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    for file in (path, copy):
        users = UserDirectory(file)
        for real in ("alice", "carol"):
            keys = users.scram_keys(real)
            assert keys == users.scram_keys(f"{real.upper()}+x@example.org")
        decoys = [users.scram_keys(name) for name in ("bob", "Bob", "bob+x", "bob@example.org", "bob+y@example.com")]
        assert len({(keys.iterations, keys.salt) for keys in decoys}) == 1
        assert users.scram_keys("bob").salt == UserDirectory(copy).scram_keys("bob").salt
        assert users.scram_keys("bob").salt != users.scram_keys("nobody").salt
        assert (decoys[0].iterations, len(decoys[0].salt)) in {(4096, 16), (100_000, 16)}
        assert decoys[0].stored_key != decoys[1].stored_key
    assert path.read_bytes().count(SECRET) == 1
    add_user(path, "dave", "x", scheme="SCRAM-SHA-256")
    assert path.read_bytes().count(SECRET) == 1
    assert UserDirectory(path).users() == ["alice", "bob", "carol", "dave"]


def test_salts_where_users_have_domains(tmp_path: Path) -> None:
    path = tmp_path / "users.passwd"
    for name in ("alice@example.org", "bob@example.com", "root"):
        add_user(path, name, "x", scheme="SCRAM-SHA-256")
    users = UserDirectory(path)
    assert users.scram_keys("nobody@example.org").salt == users.scram_keys("nobody+x@example.org").salt
    assert users.scram_keys("nobody@example.org").salt != users.scram_keys("nobody@example.com").salt
    assert users.has_scram(for_all=True)
