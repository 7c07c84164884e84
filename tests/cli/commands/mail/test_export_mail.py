from __future__ import annotations

import hashlib
import json
import mailbox
import random
import re
import stat
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgpack
import pytest
import trio

from protocol.values import UidSet
from replicator.mail.mailstore import NewMessage
from replicator.mail.view import Message
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode
from tests.imap_data.dovecot import needs_dovecot, said_of_maildir

LARGE = b"Subject: large\r\n\r\n" + b"From here\r\n" * 200 + random.Random(1).randbytes(300_000).hex().encode()
HARD = [
    b"Subject: plain\r\n\r\nHello\r\n",
    b"From: ann@example.org\r\n\r\nFrom the beginning\r\n>From quoted\r\n >From in a line\r\n\r\nFrom the end",
    b"Status: RO\r\nX-Status: AF\r\nX-Keywords: of somebody\r\n\t else\r\nSubject: s\r\n\r\nStatus: body\r\n",
    b"Subject: header alone\r\n",
    b"\r\nbody alone, without a line end",
    b"Subject: NUL, 8 bit, lone CR\r\n\r\n\x00\xff\r\r\n\r.",
    LARGE,
]
FLAGS = [
    frozenset({"\\Seen"}),
    frozenset({"\\Answered", "\\Flagged", "\\Draft", "\\Deleted", "\\Seen"}),
    frozenset({"$Forwarded", "$Junk"}),
    frozenset({"work", "\\Flagged"}),
    frozenset[str](),
    frozenset({"work"}),
    frozenset({"$Junk", "\\Seen"}),
]
RECEIVED_MS = [1_700_000_000_123, 1_700_000_000_123, 5_000, 1_000, 1_700_000_009_000, 1_700_000_008_000, 2_000]


def at_node(served: ServedNode, work: Callable[[], Awaitable[None]]) -> None:
    trio.from_thread.run(work, trio_token=served.token)


@pytest.fixture
def node(served: ServedNode) -> ServedNode:
    """A node with alice's hard mail in INBOX, some in folders with hard names, and an empty folder."""

    async def fill() -> None:
        inbox = await served.mail.folder("alice", "INBOX")
        for body, flags, received_ms in zip(HARD, FLAGS, RECEIVED_MS, strict=True):
            await served.mail.save(inbox, NewMessage(body, flags, received_ms))
        for name in ("Lists/Größe & mehr", "Empty", "../up/.hidden", "a.b", "a_b"):
            await served.mail.create_folder("alice", name)
        for name in ("Lists/Größe & mehr", "../up/.hidden", "a.b", "a_b"):
            await served.mail.save(await served.mail.folder("alice", name), NewMessage(name.encode() + b"\r\n\r\n"))

    at_node(served, fill)
    return served


def mails_of(box: mailbox.mbox) -> list[mailbox.mboxMessage]:
    with closing(box):
        return [*box]


def kept(message: Message) -> tuple[frozenset[str], int, bytes]:
    return message.flags, message.received_ms, message.content_hash


def test_maildir_is_what_was_stored(node: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    directory = tmp_path / "out" / "alice"
    result = invoke("export", "alice", "--to", f"maildir:{directory}", "--url", node.url)
    assert result.exit_code == 0, result.output
    assert f"{len(HARD) + 4} messages" in result.stdout
    assert re.search(rf"^ *INBOX +{len(HARD)} +[\d.]+ KiB", result.stdout, re.MULTILINE)
    found = mailbox.Maildir(directory, create=False)
    assert len(found) == len(HARD)
    assert sorted(found.list_folders()) == sorted(
        ["Empty", "Lists.Gr&APYA3w-e &- mehr", "Lists", "__", "__.up", "__.up._hidden", "a_b", "a_b_2"]
    )
    with_lf = sorted(body.replace(b"\r\n", b"\n").replace(b"\xff\r\n", b"\xff\r\r\n") for body in HARD)
    assert sorted(found.get_bytes(key) for key in found.iterkeys()) == with_lf
    assert [message.get_flags() for message in found if message.get_date() == 5] == ["Pab"]
    assert [file.name for file in directory.glob("tmp/*")] == []
    modes = {stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert "a.b: a Maildir cannot have this name; the folder is .a_b" in result.stderr


def test_maildir_comes_back_whole_by_an_import(node: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    assert invoke("export", "alice", "--to", f"Maildir:{directory}", "--url", node.url).exit_code == 0
    assert invoke("import", "bob", directory, "--url", node.url).exit_code == 0
    there, back = node.messages("alice", "INBOX"), node.messages("bob", "INBOX")
    assert {*map(kept, back)} == {*map(kept, there)}
    assert [(message.uid, message.content_hash) for message in back] == [
        (message.uid, message.content_hash) for message in there
    ]
    assert node.bodies("bob", "Lists/Größe & mehr") == ["Lists/Größe & mehr\r\n\r\n".encode()]


def test_uids_of_mail_that_is_gone_or_unreadable_stay_taken_in_a_maildir(
    node: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    async def take_away() -> None:
        view = await node.mail.open_mailbox(await node.mail.folder("alice", "INBOX"))
        await node.mail.expunge(view, UidSet.of([len(HARD)]))
        await node.mail.lose_body(view.messages[len(HARD) - 1])

    at_node(node, take_away)
    assert invoke("export", "alice", "--to", f"maildir:{tmp_path / 'out'}", "--url", node.url).exit_code == 1
    [first, *rest] = (tmp_path / "out" / "dovecot-uidlist").read_text().splitlines()
    assert (len(rest), int(first.split("N")[1])) == (len(HARD) - 2, len(HARD) + 1)


@needs_dovecot
def test_dovecot_goes_on_with_the_maildir(node: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    assert invoke("export", "alice", "--to", f"maildir:{directory}", "--url", node.url).exit_code == 0
    said = said_of_maildir(directory, 'LIST "" *', "SELECT INBOX", "FETCH 1:* (UID FLAGS INTERNALDATE)").decode()
    assert '"Lists.Gr&APYA3w-e &- mehr"' in said
    folders = json.loads(invoke("mailbox", "list", "alice", "--json", "--url", node.url).stdout)["folders"]
    assert f"[UIDVALIDITY {folders[0]['uidvalidity']}]" in said
    assert f"[UIDNEXT {folders[0]['uidnext']}]" in said
    rows = re.findall(r"FETCH \(UID (\d+) FLAGS \(([^)]*)\) INTERNALDATE \"([^\"]+)\"\)", said)
    for (uid, flags, date), message in zip(rows, node.messages("alice", "INBOX"), strict=True):
        assert (int(uid), frozenset(flags.split())) == (message.uid, message.flags)
        assert datetime.strptime(date, "%d-%b-%Y %H:%M:%S %z").timestamp() == message.received_ms // 1000


def test_mbox_comes_back_by_an_import_with_its_flags(node: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    result = invoke("export", "alice", "--to", f"mbox:{directory}", "--url", node.url)
    assert result.exit_code == 0, result.output
    files = sorted(str(path.relative_to(directory)) for path in directory.rglob("*.mbox"))
    assert files == sorted(
        ["INBOX.mbox", "Empty.mbox", "Lists.mbox", "Lists/Größe & mehr.mbox", "_..mbox", "_./up.mbox",
         "_./up/_hidden.mbox", "a.b.mbox", "a_b.mbox"]
    )  # fmt: skip
    found = mails_of(mailbox.mbox(directory / "INBOX.mbox", create=False))
    assert [message.get_flags() for message in found] == ["RO", "ROAFTD", "O", "OF", "O", "O", "RO"]
    assert found[2].get_all("X-Keywords") == ["$Forwarded $Junk"]
    assert invoke("import", "bob", directory / "INBOX.mbox", "--url", node.url).exit_code == 0
    back = node.messages("bob", "INBOX")
    assert [message.flags for message in back] == FLAGS
    assert [message.received_ms for message in back] == [ms // 1000 * 1000 for ms in RECEIVED_MS]
    for before, after in zip(HARD, node.bodies("bob", "INBOX"), strict=True):
        own = re.sub(rb"\A(?:(?:X-)?Status|X-Keywords):[^\n]*\n(?:[ \t][^\n]*\n)*", b"", before)
        while own != before:
            before, own = own, re.sub(rb"\A(?:(?:X-)?Status|X-Keywords):[^\n]*\n(?:[ \t][^\n]*\n)*", b"", own)  # noqa: PLW2901
        assert after.endswith((own, own + b"\r\n")), before


def test_folders_whose_names_are_those_of_files_are_written_to_an_mbox(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    async def fill() -> None:
        for name in ("a", "a.mbox/b", "a.mbox_2/b"):
            folder = await served.mail.create_folder("alice", name)
            await served.mail.save(folder, NewMessage(name.encode() + b"\r\n\r\n"))

    at_node(served, fill)
    result = invoke("export", "alice", "--to", f"mbox:{tmp_path / 'out'}", "--json", "--url", served.url)
    assert (result.exit_code, json.loads(result.stdout)["failures"]) == (0, [])
    for name in ("a.mbox", "a.mbox_/b.mbox", "a.mbox_2_/b.mbox"):
        assert len(mails_of(mailbox.mbox(tmp_path / "out" / name, create=False))) == 1


def test_more_keywords_than_a_maildir_has_letters_are_named(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    async def fill() -> None:
        inbox = await served.mail.folder("alice", "INBOX")
        for number in range(28):
            await served.mail.save(inbox, NewMessage(b"%d\r\n\r\n" % number, frozenset({f"k{number:02}"}), number))

    at_node(served, fill)
    result = invoke("export", "alice", "--to", f"maildir:{tmp_path / 'out'}", "--url", served.url)
    assert result.exit_code == 0
    assert result.stderr == "INBOX: a Maildir has 26 keywords at most; not kept: k26, k27\n"
    assert (tmp_path / "out" / "dovecot-keywords").read_text().splitlines() == [f"{n} k{n:02}" for n in range(26)]


@pytest.mark.parametrize("kind", ["maildir", "mbox"])
def test_what_cannot_be_read_is_named_and_the_rest_is_written(
    node: ServedNode, invoke: Invoke, tmp_path: Path, kind: str
) -> None:
    messages = node.messages("alice", "INBOX")
    for message in (messages[0], messages[-1]):  # a small one, and one with an attachment
        at_node(node, partial(node.mail.lose_body, message))
    result = invoke("export", "alice", "--to", f"{kind}:{tmp_path / 'out'}", "--json", "--url", node.url)
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert [(one["folder"], one["uid"]) for one in document["failures"]] == [("INBOX", 1), ("INBOX", len(HARD))]
    assert document["failures"][0]["reason"]
    assert document["folders"][0]["messages"] == len(HARD) - 2
    assert len(document["folders"]) == 9
    assert document["stopped"] is None
    if kind == "maildir":
        assert len(mailbox.Maildir(tmp_path / "out", create=False)) == len(HARD) - 2
        assert [*(tmp_path / "out" / "tmp").iterdir()] == []
    else:
        assert len(mails_of(mailbox.mbox(tmp_path / "out" / "INBOX.mbox", create=False))) == len(HARD) - 2


@pytest.fixture
def dying() -> Iterator[str]:
    """The URL of a node that dies in the middle of the second mail of a folder."""
    counts = {"mailbox_id": "00", "uidvalidity": 1, "uidnext": 3, "subscribed": True}
    counts |= {"messages": 2, "unseen": 0, "size_bytes": 4}
    folders = [{"name": name, **counts} for name in ("INBOX", "Later")]
    listed = {"user": "alice", "folders": folders, "stray_subscriptions": [], "keep_expunged_s": 1.0}
    heads: list[object] = [(uid, [], 5, 2, hashlib.sha256(b"ab").digest()) for uid in (1, 2)]
    mail = b"".join(map(msgpack.packb, (heads[0], b"ab", heads[1], b"a")))

    class Dying(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            if self.path.endswith("/folders"):
                body = json.dumps(listed).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(mail), mail))
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Dying) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ["maildir", "mbox"])
def test_a_node_that_dies_ends_the_export_with_what_is_whole(
    dying: str, invoke: Invoke, tmp_path: Path, kind: str
) -> None:
    result = invoke("export", "alice", "--to", f"{kind}:{tmp_path / 'out'}", "--json", "--url", dying)
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert [(one["name"], one["messages"]) for one in document["folders"]] == [("INBOX", 1)]
    assert "no answer" in document["stopped"]
    if kind == "maildir":
        assert len(mailbox.Maildir(tmp_path / "out", create=False)) == 1
        assert [*(tmp_path / "out" / "tmp").iterdir()] == []
    else:
        assert len(mails_of(mailbox.mbox(tmp_path / "out" / "INBOX.mbox", create=False))) == 1


def test_a_directory_that_is_not_empty_is_left_alone(node: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = invoke("export", "alice", "--to", f"mbox:{tmp_path}", "--url", node.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the directory is not empty" in result.stderr
    result = invoke("export", "alice", "--to", f"mbox:{tmp_path / 'file'}", "--url", node.url)
    assert (result.exit_code, "File exists" in result.stderr) == (1, True)


def test_one_folder_is_exported(node: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    arguments = ("--mailbox", "a.b", "--mailbox", "inbox", "--json", "--url", node.url)
    result = invoke("export", "alice", "--to", f"mbox:{tmp_path / 'out'}", *arguments)
    assert [folder["name"] for folder in json.loads(result.stdout)["folders"]] == ["INBOX", "a.b"]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["alice", "--to", "zip:out"], 2, "'zip:out' is neither maildir:DIR nor mbox:DIR"),
        (["alice", "--to", "mbox:"], 2, "neither"),
        (["eve", "--to", "mbox:out"], 1, "there is no user 'eve'"),
        (["alice", "--to", "mbox:out", "--mailbox", "Nowhere"], 1, "alice has no folder 'Nowhere'"),
    ],
)
def test_errors_write_nothing(served: ServedNode, invoke: Invoke, arguments: list[str], code: int, why: str) -> None:
    result = invoke("export", *arguments, "--url", served.url)
    assert (result.exit_code, result.stdout, why in result.stderr) == (code, "", True), result.stderr
    assert not Path("out").exists()
