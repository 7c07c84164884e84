from __future__ import annotations

import hashlib
import stat
import sys
from pathlib import Path

import pytest

from replicator.http.tokens import FILE_MAX_BYTES, Role, TokenFileError, Tokens, add_token, delete_token, list_tokens


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "http.tokens"


def test_file_holds_hashes_and_is_for_its_owner_alone(file: Path) -> None:
    secret = add_token(file, "prometheus", Role.READ)
    assert secret not in file.read_text("utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    holder = Tokens(file).holder(secret)
    assert holder is not None
    assert (holder.name, holder.role) == ("prometheus", Role.READ)


def test_every_secret_is_another_and_holds_for_its_own_token(file: Path) -> None:
    secrets = {name: add_token(file, name, role) for name, role in (("a", Role.READ), ("b", Role.OPERATE))}
    tokens = Tokens(file)
    assert {name: holder and holder.name for name, holder in ((n, tokens.holder(s)) for n, s in secrets.items())} == {
        "a": "a",
        "b": "b",
    }
    line = file.read_text("utf-8").splitlines()[1]
    for wrong in ("", "x", secrets["a"][:-1], secrets["a"] + "x", line, line.rpartition(":")[2], "\udc80"):
        assert tokens.holder(wrong) is None


def test_changes_hold_at_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = Tokens(file)
    assert tokens.holder("x") is None
    assert "no token is accepted: No such file or directory; `replicator token add` makes the first" in caplog.text
    secret = add_token(file, "laptop", Role.OPERATE)
    assert tokens.holder(secret) is not None
    delete_token(file, "laptop")
    assert tokens.holder(secret) is None
    assert list_tokens(file) == ()
    add_token(file, "laptop", Role.OPERATE)
    file.unlink()
    assert tokens.holder(secret) is None


def test_wrong_lines_count_for_nothing_and_are_told_with_their_number(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = add_token(file, "good", Role.READ)
    hashed = file.read_text("utf-8").strip().rpartition(":")[2]
    wrong = [f"admin:root:{hashed}", f"good:operate:{hashed}", "x:operate:", f"{hashed}", "\ufffd:read:zz"]
    file.write_text("\n".join(["# tokens", "", f"good:read:{hashed}", *wrong]), "utf-8")
    holder = Tokens(file).holder(secret)
    assert holder is not None
    assert holder.role is Role.READ
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == [
        f"{file}:{number}" for number in range(4, 9)
    ]


def test_names_are_taken_once_and_edits_keep_other_lines(file: Path) -> None:
    file.write_text("# by hand, without a line end", "utf-8")
    add_token(file, "a", Role.READ)
    with pytest.raises(TokenFileError, match="there is a token 'a' already"):
        add_token(file, "a", Role.OPERATE)
    with pytest.raises(TokenFileError, match="there is no token 'b'"):
        delete_token(file, "b")
    for name in ("", "a:b", "a b", "-", "ä", "a" * 65, "a\n"):
        with pytest.raises(TokenFileError, match="is not a token's name"):
            add_token(file, name, Role.READ)
    delete_token(file, "a")
    assert file.read_text("utf-8") == "# by hand, without a line end\n"


def test_request_costs_the_same_however_many_tokens_there_are(file: Path) -> None:
    costs = []
    for count in (10, 1000):
        lines = [f"{number}:read:{hashlib.sha256(str(number).encode()).hexdigest()}\n" for number in range(count)]
        file.write_text("".join(lines), "utf-8")
        tokens = Tokens(file)
        tokens.refresh()
        costs.append([_calls_of(tokens, secret) for secret in ("0", str(count - 1), "none")])
    assert costs[0] == costs[1]


def _calls_of(tokens: Tokens, secret: str) -> int:
    """Return how many functions are called for a request, those of the interpreter included."""
    events: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: events.append(event))
    try:
        tokens.holder(secret)
    finally:
        sys.setprofile(None)
    return sum(event in {"call", "c_call"} for event in events)


def test_file_without_end_is_not_read(file: Path) -> None:
    file.write_bytes(b"#" * (FILE_MAX_BYTES + 1))
    assert Tokens(file).holder("x") is None
    with pytest.raises(TokenFileError, match="this is not a file of tokens"):
        list_tokens(file)
