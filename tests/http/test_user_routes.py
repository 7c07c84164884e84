from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio

from protocol.values import UidSet
from replicator.errors import UnavailableError
from replicator.http.access import Access
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tokens import Role, Tokens, add_token
from replicator.http.users import purge
from replicator.http.users.routes import LINES_MAX
from replicator.mail.annotations import USER_TABLE
from replicator.mail.mailstore import NewMessage
from replicator.mail.view import MailboxView
from replicator.user_table import ClusterUsers
from replicator.users import UserDirectory, add_user
from tests.http.conversation import Answer, Conversation, conversation
from tests.http.fixed_report import FixedReport
from tests.one_node import HookedMail, run_inline


@pytest.fixture
def users(tmp_path: Path) -> UserDirectory:
    return UserDirectory(tmp_path / "users.passwd")


@pytest.fixture
async def client(
    services: HttpServices, mail: HookedMail, users: UserDirectory, tmp_path: Path
) -> AsyncIterator[Conversation]:
    table = ClusterUsers(mail, tmp_path / "users.passwd", run_inline)
    mail.store.listeners.append(table.note)
    async with conversation(HttpServer(replace(services, user_table=table, oversight=users))) as talk:
        yield talk


async def ask(client: Conversation, method: str, path: str, document: object = None) -> Answer:
    head = f"{method} /api/v1/users{path} HTTP/1.1\r\nHost: localhost\r\n"
    body = b""
    if document is not None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return await client.ask(f"{head}\r\n".encode() + body, method.encode())


async def names(client: Conversation) -> list[str]:
    found: list[str] = json.loads((await ask(client, "GET", "")).body)
    return found


async def test_users_are_added_changed_listed_and_removed(client: Conversation, users: UserDirectory) -> None:
    added = await ask(client, "POST", "", {"lines": ["bob:{PLAIN}x", "ann:{PLAIN}y"]})
    assert (added.status, added.json) == (201, {"users": 2})
    assert await names(client) == ["ann", "bob"]
    assert await users.verify("ann", "y")
    assert (await ask(client, "PUT", "/ann/password", {"hash": "{PLAIN}z"})).status == 200
    assert await users.verify("ann", "z")
    assert (await ask(client, "POST", "", {"lines": ["ann:{PLAIN}y"], "replace": True})).status == 201
    assert await users.verify("ann", "y")
    assert (await ask(client, "DELETE", "/ann")).status == 200
    assert await names(client) == ["bob"]


async def test_users_are_disabled_and_enabled(client: Conversation, users: UserDirectory, tmp_path: Path) -> None:
    await ask(client, "POST", "", {"lines": ["ann:{PLAIN}y:::::::quota_messages=5"]})
    for disabled in (True, False):
        answer = await ask(client, "PUT", "/ann/disabled", {"disabled": disabled})
        opened = {"mail_user": "ann", "other_names": []}
        assert (answer.status, answer.json) == (200, {"user": "ann", "disabled": disabled} | opened)
        assert (await users.verify("ann", "y") is None) is disabled
        listed = await client.ask(b"GET /api/v1/accounts HTTP/1.1\r\nHost: localhost\r\n\r\n")
        [account] = json.loads(listed.body)
        assert account == {
            "user": "ann",
            "mail_user": "ann",
            "disabled": disabled,
            "has_password": True,
            "storage_limit_bytes": None,
            "messages_limit": 5,
            "cluster": None,
            "origin": str(tmp_path / "users.passwd"),
        }
        shown = await client.ask(b"GET /api/v1/users/Ann%2Bx%40Example.org HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert json.loads(shown.body) == account
    unknown = await client.ask(b"GET /api/v1/users/bob HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert unknown.status == 404


async def test_a_user_is_renamed_and_keeps_the_mail(
    client: Conversation, users: UserDirectory, report: FixedReport
) -> None:
    report.component = ("dc1", "dc2", "dc3")
    await ask(client, "POST", "", {"lines": ["ann:{PLAIN}y", "bob:*"]})
    answer = await ask(client, "PUT", "/Ann/name?to=Anna%40Example.org")
    assert (answer.status, answer.json) == (200, {"user": "anna@example.org", "mail_user": "ann"})
    assert await names(client) == ["anna@example.org", "bob"]
    login = await users.verify("anna@example.org", "y")
    assert login
    assert login.user == "ann"
    shown = await ask(client, "GET", "/anna@example.org")
    assert (shown.json["user"], shown.json["mail_user"]) == ("anna@example.org", "ann")
    purged = await ask(client, "POST", "/ann/purge")
    assert (purged.status, "whose mail 'anna@example.org' opens" in str(purged.json["detail"])) == (409, True)
    for path, status, words in [
        ("/bob/name?to=ann", 409, "'ann' is the user whose mail 'anna@example.org' opens"),
        ("/bob/name?to=anna@example.org", 409, "already exists"),
        ("/ann/name?to=eve", 404, "no user 'ann'"),
        ("/bob/name?to=b%20b", 400, "no colon, space"),
        ("/bob/name?to=eve:%7BPLAIN%7Dx", 400, "no colon"),
        ("/bob/name", 400, "to"),
    ]:
        refused = await ask(client, "PUT", path)
        assert (refused.status, words in str(refused.json["detail"])) == (status, True), refused.json
    again = await ask(client, "POST", "", {"lines": ["ann:*"], "replace": True})
    assert (again.status, "whose mail 'anna@example.org' opens" in str(again.json["detail"])) == (409, True)
    back = await ask(client, "PUT", "/anna@example.org/name?to=ann")
    assert (back.status, back.json) == (200, {"user": "ann", "mail_user": "ann"})
    assert await names(client) == ["ann", "bob"]


@pytest.mark.parametrize(
    ("asked", "document", "status", "words"),
    [
        ("POST ", {"lines": ["bob:{PLAIN}x"]}, 409, "'bob' already exists"),
        ("POST ", {"lines": []}, 400, f"1 to {LINES_MAX} strings"),
        ("POST ", {"lines": ["x:*"] * (LINES_MAX + 1)}, 400, f"1 to {LINES_MAX} strings"),
        ("POST ", {"lines": ["ann:*", 7]}, 400, f"1 to {LINES_MAX} strings"),
        ("POST ", {"lines": ["ann:{NO}x"]}, 400, "NO"),
        ("POST ", {"lines": ["ann:*\neve:*"]}, 400, "no line end"),
        ("POST ", {"lines": ["ann\ud800:*"]}, 400, "surrogates"),
        ("POST ", {"line": []}, 400, "'line' is not an option"),
        ("PUT /ann/password", {"hash": "{PLAIN}x"}, 404, "no user 'ann'"),
        ("PUT /bob/password", {}, 400, "hash is missing"),
        ("PUT /bob/password", {"hash": "x\ny"}, 400, "no colon"),
        ("PUT /ann/disabled", {"disabled": True}, 404, "no user 'ann'"),
        ("PUT /bob/disabled", {}, 400, "disabled is missing"),
        ("PUT /bob/disabled", {"disabled": 1}, 400, "disabled must be true or false"),
        ("DELETE /ann", None, 404, "no user 'ann'"),
    ],
)
async def test_impossible_changes_are_refused(
    client: Conversation, asked: str, document: object, status: int, words: str
) -> None:
    await ask(client, "POST", "", {"lines": ["bob:{PLAIN}x"]})
    method, path = asked.split(" ")
    answer = await ask(client, method, path, document)
    assert (answer.status, words in str(answer.json["detail"])) == (status, True), answer.json
    assert await names(client) == ["bob"]


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("alice", 409, "'alice' is a user"),
        ("ALICE", 409, "'alice' is a user"),
        ("%3Ausers", 400, "no colon"),
        ("gone", 503, "dc3 cannot be reached"),
    ],
)
async def test_only_the_mail_of_former_users_is_purged(
    services: HttpServices, mail: HookedMail, name: str, status: int, words: str
) -> None:
    await mail.annotate(USER_TABLE, None, {"/shared/vendor/x/y": b"kept"})
    with TemporaryDirectory() as directory:
        add_user(Path(directory) / "users.passwd", "alice", "x", scheme="PLAIN")
        users = UserDirectory(Path(directory) / "users.passwd")
        async with conversation(HttpServer(replace(services, oversight=users))) as client:
            answer = await ask(client, "POST", f"/{name}/purge")
    assert (answer.status, words in str(answer.json["detail"])) == (status, True), answer.json
    assert await mail.annotations(USER_TABLE, None) == {"/shared/vendor/x/y": b"kept"}


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ("alice", 409, "'alice' is the user whose mail 'alicia' opens: delete the user 'alicia' first"),
        ("alicia", 409, "'alicia' is a user: delete the user first"),
        ("eve", 503, "dc3 cannot be reached, and may have more of this mail, or such a user"),
    ],
)
async def test_mail_that_a_renamed_user_opens_is_no_former_users(
    services: HttpServices, asked: str, status: int, words: str
) -> None:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "users.passwd"
        await trio.Path(file).write_text("alicia:*::::::user=alice\n")
        users = UserDirectory(file)
        async with conversation(HttpServer(replace(services, users=users, oversight=users))) as client:
            answer = await ask(client, "POST", f"/{asked}/purge")
    assert (answer.status, words in str(answer.json["detail"])) == (status, True), answer.json


async def test_nothing_is_purged_while_it_is_not_known_whose_mail_a_name_opens(
    services: HttpServices, users: UserDirectory, tmp_path: Path
) -> None:
    await trio.Path(tmp_path / "users.passwd").write_text("zoe:*::::::user=%n\n")
    async with conversation(HttpServer(replace(services, users=users, oversight=users))) as client:
        answer = await ask(client, "POST", "/alice/purge")
    assert (answer.status, "not known now whose mail zoe opens" in str(answer.json["detail"])) == (503, True)


async def test_a_purge_that_fails_half_way_is_noted_first(
    client: Conversation, mail: HookedMail, report: FixedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise UnavailableError("the disk is slow")

    report.component = ("dc1", "dc2", "dc3")
    await mail.save(await mail.folder("alice", "INBOX"), NewMessage(b"Subject: 1\r\n\r\n"))
    with monkeypatch.context() as patch:
        patch.setattr(mail, "expunge", fail)
        assert (await ask(client, "POST", "/alice/purge")).status == 503
    found = (await mail.tree_changes("alice")).purge
    assert found is not None
    assert found.uidnext is None
    assert (await ask(client, "POST", "/alice/purge")).status == 200
    found = (await mail.tree_changes("alice")).purge
    assert found is not None
    assert found.uidnext == 2


async def test_a_purge_expunges_the_last_mails_first(
    client: Conversation, mail: HookedMail, report: FixedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks off, a Dovecot has no mail below one that is left: it would take it for expunged by a user."""
    report.component = ("dc1", "dc2", "dc3")
    inbox = await mail.folder("alice", "INBOX")
    for _ in range(3):
        await mail.save(inbox, NewMessage(b"Subject: 1\r\n\r\n"))
    expunge, left = mail.expunge, list[list[int]]()

    async def expunge_then_look(view: MailboxView, uids: UidSet) -> None:
        await expunge(view, uids)
        left.append([*view.messages])

    monkeypatch.setattr(purge, "EXPUNGED_AT_ONCE", 1)
    monkeypatch.setattr(mail, "expunge", expunge_then_look)
    assert (await ask(client, "POST", "/alice/purge")).status == 200
    assert left == [[1, 2], [1], []]


async def test_mail_that_comes_during_a_purge_is_purged(
    client: Conversation, mail: HookedMail, report: FixedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that was running as the user was deleted saves mails to its end."""
    report.component = ("dc1", "dc2", "dc3")
    inbox, note = await mail.folder("alice", "INBOX"), mail.note_purge

    async def note_then_save(user: str, uidnext: int | None) -> None:
        await note(user, uidnext)
        if uidnext is None:
            await mail.save(inbox, NewMessage(b"Subject: late\r\n\r\n"))

    monkeypatch.setattr(mail, "note_purge", note_then_save)
    assert (await ask(client, "POST", "/alice/purge")).status == 200
    assert not await mail.expunged(inbox)
    found = (await mail.tree_changes("alice")).purge
    assert found is not None
    assert found.uidnext == 2


async def test_nobody_is_renamed_unless_all_nodes_are_linked(client: Conversation, report: FixedReport) -> None:
    await ask(client, "POST", "", {"lines": ["ann:*"]})
    refused = await ask(client, "PUT", "/ann/name?to=anna")
    told = "nobody is renamed: dc3 cannot be reached, and may have given a name to somebody else; try again when all"
    assert (refused.status, told in str(refused.json["detail"])) == (503, True), refused.json
    assert await names(client) == ["ann"]
    report.component = ("dc1", "dc2", "dc3")
    assert (await ask(client, "PUT", "/ann/name?to=anna")).status == 200


async def test_who_else_opens_the_mail_is_told(client: Conversation) -> None:
    await ask(client, "POST", "", {"lines": ["team:*", "ann:*::::::user=team", "bob:*::::::user=team"]})
    disabled = await ask(client, "PUT", "/ann/disabled", {"disabled": True})
    opened = {"mail_user": "team", "other_names": ["bob", "team"]}
    assert disabled.json == {"user": "ann", "disabled": True} | opened
    deleted = await ask(client, "DELETE", "/ann")
    assert deleted.json == {"user": "ann"} | opened


@pytest.mark.parametrize("name", ["alice@b.org", "Alice@B.org", "alicia@b.org", "alicia+x@b.org"])
async def test_operators_may_name_a_user_by_the_mail(
    services: HttpServices, mail: HookedMail, users: UserDirectory, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "users.passwd"
    await trio.Path(file).write_text("alice:*\nalicia@b.org:*::::::user=alice@b.org\nzoe:*::::::user=%n\n")
    await mail.create_folder("alice@b.org", "Work")
    services = replace(services, users=users, oversight=users)
    named = name.replace("@", "%40").replace("+", "%2B")
    async with conversation(HttpServer(services)) as client:
        assert (await ask(client, "GET", f"/{named}/quota")).json["user"] == "alice@b.org"
        folders = json.loads((await ask(client, "GET", f"/{named}/folders")).body)
        assert "Work" in str(folders)
        for path in ("messages?mailbox=Work", "folders/Work/master"):
            assert (await ask(client, "GET", f"/{named}/{path}")).status == 200
        assert (await ask(client, "GET", f"/{named}")).json["user"] == "alicia@b.org"
        assert (await ask(client, "GET", "/alice%2Bx%40b.org/quota")).status == 404, "it is nobody's address"
        assert (await ask(client, "GET", "/alice/quota")).json["user"] == "alice"
    assert await services.owner(name) == "alice@b.org"
    assert await services.owner("Eve") == "eve"


async def test_node_with_a_file_of_users_keeps_no_table(services: HttpServices) -> None:
    async with conversation(HttpServer(services)) as client:
        answer = await ask(client, "DELETE", "/bob")
    assert (answer.status, "come from its passwd-file" in str(answer.json["detail"])) == (409, True)


async def test_log_ins_are_tried_without_a_trace(services: HttpServices, tmp_path: Path) -> None:
    await trio.Path(tmp_path / "users.passwd").write_text("alice:{PLAIN}secret\n")
    async with conversation(HttpServer(services)) as client:
        right = await ask(client, "POST", "/Alice%40x/try-login", {"password": "secret"})
        assert right.json == {
            "user": "alice",
            "reasons": [],
            "waits_s": 0.0,
            "slowed": [],
            "only_from": None,
            "master": None,
            "origin": str(tmp_path / "users.passwd"),
            "answer": None,
        }
        wrong = await ask(client, "POST", "/alice/try-login", {"password": "x"})
        assert wrong.json["reasons"] == [{"obstacle": "wrong_password", "text": "the password is wrong"}]
        assert (await ask(client, "POST", "/alice/try-login", {})).status == 400
        await trio.Path(tmp_path / "users.passwd").write_text("alice:{PLAIN}secret::::::allow_nets=192.0.2.0/24\n")
        far = await ask(client, "POST", "/alice/try-login", {"password": "secret", "address": "::1"})
        assert far.json["only_from"] == ["192.0.2.0/24"]
        assert "wrong_address" in str(far.json["reasons"])
        nonsense = await ask(client, "POST", "/alice/try-login", {"password": "secret", "address": "x"})
        assert nonsense.status == 400


async def test_who_may_only_read_neither_tries_log_ins_nor_sees_penalties(
    services: HttpServices, tmp_path: Path
) -> None:
    file = tmp_path / "http.tokens"
    secret = add_token(file, "monitoring", Role.READ)
    head = f"HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n"
    async with conversation(HttpServer(services, Access(Tokens(file)))) as client:
        asked = await client.ask(f"GET /api/v1/penalties {head}\r\n".encode())
        assert asked.status == 403
        body = f"Content-Type: application/json\r\nContent-Length: 16\r\n\r\n{json.dumps({'password': 'x'})}"
        tried = await client.ask(f"POST /api/v1/users/alice/try-login {head}{body}".encode())
        assert tried.status == 403
