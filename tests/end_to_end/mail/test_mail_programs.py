"""People's daily work with mail, by many programs, which change to another node in the middle.

Debian's NeoMutt, imapfilter and fetchmail; IMAPClient and imap-tools from PyPI. isync and OfflineIMAP have files of
their own.
"""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import imap_tools
import imapclient
import pytest

from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from tests.effort import IN_CI
from tests.end_to_end.helpers.mail_clients import deliver, imap, uids, until

NEOMUTT, IMAPFILTER, FETCHMAIL = map(shutil.which, ("neomutt", "imapfilter", "fetchmail"))
PROGRAM_S = 60.0
USERS = ("imapclient", "imaptools", "neomutt", "imapfilter", "fetchmail")
WRITTEN = b"Subject: written here\r\n\r\nI wrote this.\r\n"


def needs(program: str | None, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        program is None and not IN_CI, reason=f"{package} is not installed: apt-get install {package}"
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("programs") / "nodes", USERS) as started:
        yield started
        started.wait_until_equal()


def begin(cluster: Cluster, user: str) -> None:
    """Give the user three messages, and a folder for old ones, at the first node."""
    subjects = (b"one", b"two", b"three")
    deliver(cluster.nodes[0], [b"Subject: %b\r\n\r\nThis is %b.\r\n" % (word, word) for word in subjects], [user])
    client = imap(cluster.nodes[0], user)
    assert client.create("Archive")[0] == "OK"
    assert client.subscribe("Archive")[0] == "OK"
    client.logout()


def check_day(cluster: Cluster, user: str) -> None:
    """Check the mail at the third node: one is flagged, two is in Archive, three is gone, and one was written."""
    client = imap(cluster.nodes[2], user)
    found = {}
    for folder in ("INBOX", "Archive"):
        assert client.select(folder)[0] == "OK"
        due = 2 if folder == "INBOX" else 1
        until(client, lambda due=due: len(uids(client, "UNDELETED")) == due)
        for subject in ("one", "two", "three", "written here"):
            found[folder, subject] = len(uids(client, "SUBJECT", f'"{subject}"'))
    expected = {("INBOX", "one"), ("Archive", "two"), ("INBOX", "written here")}
    assert {key for key, count in found.items() if count} == expected
    assert all(count <= 1 for count in found.values())
    client.select("INBOX")
    assert len(uids(client, "FLAGGED", "SUBJECT", "one")) == 1
    client.logout()


def lines(text: str) -> str:
    return "".join(f"{line.strip()}\n" for line in text.strip().splitlines())


# ---- libraries ------------------------------------------------------------------------------------------------------


def test_day_with_imapclient(cluster: Cluster) -> None:
    begin(cluster, "imapclient")
    with imapclient.IMAPClient(*cluster.nodes[0].address("imap"), ssl=False) as client:
        client.login("imapclient", PASSWORD)
        assert {name for _, _, name in client.list_folders()} == {"INBOX", "Archive"}
        assert client.select_folder("INBOX")[b"EXISTS"] == 3
        fetched = client.fetch(client.search(), ["ENVELOPE", "FLAGS", "BODY.PEEK[TEXT]"])
        by_subject = {data[b"ENVELOPE"].subject: uid for uid, data in fetched.items()}
        assert {data[b"BODY[TEXT]"] for data in fetched.values()} == {
            b"This is one.\r\n",
            b"This is two.\r\n",
            b"This is three.\r\n",
        }
        flags = client.add_flags(by_subject[b"one"], [imapclient.FLAGGED])
        assert imapclient.FLAGGED in flags[by_subject[b"one"]]
    with imapclient.IMAPClient(*cluster.nodes[1].address("imap"), ssl=False) as client:
        client.login("imapclient", PASSWORD)
        assert client.enable("CONDSTORE") == [b"CONDSTORE"]
        client.select_folder("INBOX")
        assert client.search(["FLAGGED"]) == [by_subject[b"one"]]  # the UIDs that the other node told
        assert client.search(["SUBJECT", "two"]) == [by_subject[b"two"]]
        assert client.sort(["REVERSE ARRIVAL"])[0] == by_subject[b"three"]
        assert len(client.thread()) == 3
        client.idle()
        client.idle_done()
        assert b"APPENDUID" in client.append("INBOX", WRITTEN, [imapclient.SEEN])
        client.move([by_subject[b"two"]], "Archive")
        client.delete_messages([by_subject[b"three"]])
        client.expunge([by_subject[b"three"]])
        assert len(client.search()) == 2
        assert client.folder_status("Archive", ["MESSAGES"])[b"MESSAGES"] == 1
    check_day(cluster, "imapclient")


def test_day_with_imap_tools(cluster: Cluster) -> None:
    begin(cluster, "imaptools")
    first, second, _ = (node.address("imap") for node in cluster.nodes)
    with imap_tools.MailBoxUnencrypted(*first).login("imaptools", PASSWORD) as mailbox:
        assert {folder.name for folder in mailbox.folder.list()} == {"INBOX", "Archive"}
        mails = {mail.subject: mail for mail in mailbox.fetch(mark_seen=False)}
        assert {subject: mail.text for subject, mail in mails.items()} == {
            word: f"This is {word}.\r\n" for word in ("one", "two", "three")
        }
        mailbox.flag(str(mails["one"].uid), imap_tools.MailMessageFlags.FLAGGED, value=True)
    with imap_tools.MailBoxUnencrypted(*second).login("imaptools", PASSWORD) as mailbox:
        assert mailbox.uids(imap_tools.AND(flagged=True)) == [mails["one"].uid]
        assert mailbox.folder.status("INBOX")["MESSAGES"] == 3
        mailbox.append(WRITTEN, "INBOX", flag_set=[imap_tools.MailMessageFlags.SEEN])
        mailbox.move(mailbox.uids(imap_tools.AND(subject="two")), "Archive")
        mailbox.delete(str(mails["three"].uid))
        assert len(mailbox.uids()) == 2
    check_day(cluster, "imaptools")


# ---- NeoMutt --------------------------------------------------------------------------------------------------------


def neomutt(node: Node, directory: Path, keys: str) -> None:
    """Press these keys in NeoMutt, which keeps a cache and knows QRESYNC. Its editor writes one line."""
    host, port = node.address("imap")
    (directory / "cache").mkdir(exist_ok=True)
    editor, rc = directory / "editor", directory / "neomuttrc"
    editor.write_text('#!/bin/sh\necho I wrote this. >> "$1"\n', encoding="utf-8")
    editor.chmod(0o700)
    rc.write_text(
        lines(f"""
        set folder = "imap://neomutt@{host}:{port}/" imap_pass = "{PASSWORD}"
        set spool_file = "+INBOX" record = "+INBOX"
        set ssl_force_tls = no ssl_starttls = no
        set imap_condstore = yes imap_qresync = yes header_cache = "{directory}/cache"
        set delete = yes quit = yes confirm_append = no confirm_create = no wait_key = no mark_old = no
        set editor = "{editor}" sendmail = /bin/true from = "a@example.org"
        push "{keys}<quit>"
        """),
        encoding="utf-8",
    )
    assert NEOMUTT is not None
    command = [NEOMUTT, "-n", "-F", str(rc)]
    environment = {**os.environ, "TERM": "xterm", "HOME": str(directory), "LC_ALL": "C.UTF-8"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            shown = _all_output(ours)
            assert process.wait(PROGRAM_S) == 0, shown[-2000:]
        finally:
            os.close(ours)
            process.kill()


def _all_output(terminal: int) -> bytes:
    """Read what a program writes until it ends, or shows nothing more for a long time."""
    shown = b""
    while select.select([terminal], [], [], PROGRAM_S)[0]:
        try:
            some = os.read(terminal, 65536)
        except OSError:  # the terminal has no other end any more
            break
        if not some:
            break
        shown += some
    return shown


@needs(NEOMUTT, "neomutt")
def test_day_with_neomutt(cluster: Cluster, tmp_path: Path) -> None:
    first, second, _ = cluster.nodes
    begin(cluster, "neomutt")
    neomutt(first, tmp_path, "<search>~s one<enter><flag-message><sync-mailbox>")
    client = imap(first, "neomutt")
    assert len(uids(client, "FLAGGED")) == 1
    client.logout()
    neomutt(
        second,
        tmp_path,
        "<search>~s two<enter><save-message>=Archive<enter><search>~s three<enter><delete-message><sync-mailbox>"
        "<mail>b@example.org<enter>written here<enter><send-message>",
    )
    check_day(cluster, "neomutt")


# ---- imapfilter -----------------------------------------------------------------------------------------------------


def imapfilter(node: Node, directory: Path, program: str) -> str:
    """Run a program in Lua, and return its output."""
    host, port = node.address("imap")
    config = directory / "config.lua"
    config.write_text(
        lines(f"""
        options.timeout = 60
        mail = IMAP {{ server = '{host}', port = {port}, username = 'imapfilter', password = '{PASSWORD}' }}
        """)
        + program,
        encoding="utf-8",
    )
    assert IMAPFILTER is not None
    environment = {**os.environ, "HOME": str(directory)}
    done = subprocess.run(
        [IMAPFILTER, "-c", str(config)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PROGRAM_S,
        check=False,
        env=environment,
        text=True,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@needs(IMAPFILTER, "imapfilter")
def test_day_with_imapfilter(cluster: Cluster, tmp_path: Path) -> None:
    first, second, _ = cluster.nodes
    begin(cluster, "imapfilter")
    (tmp_path / ".imapfilter").mkdir()
    told = imapfilter(
        first,
        tmp_path,
        lines("""
        mailboxes = mail:list_all()
        for _, name in ipairs(mailboxes) do print('folder ' .. name) end
        for _, message in ipairs(mail.INBOX:select_all()) do
            box, uid = table.unpack(message)
            print(box[uid]:fetch_field('Subject') .. ': ' .. box[uid]:fetch_body())
        end
        mail.INBOX:contain_subject('one'):mark_flagged()
        """),
    )
    assert {line for line in told.splitlines() if line} >= {
        "folder INBOX",
        "folder Archive",
        "Subject: one: This is one.",
        "Subject: two: This is two.",
        "Subject: three: This is three.",
    }, told
    told = imapfilter(
        second,
        tmp_path,
        lines(r"""
        exist, recent, unseen, uidnext = mail.INBOX:check_status()
        print('exist ' .. exist .. ', flagged ' .. #mail.INBOX:is_flagged())
        mail.INBOX:append_message('Subject: written here\r\n\r\nI wrote this.\r\n', {'\\Seen'})
        mail.INBOX:contain_subject('two'):move_messages(mail.Archive)
        mail.INBOX:contain_subject('three'):delete_messages()
        print('left ' .. #mail.INBOX:select_all())
        """),
    )
    assert "exist 3, flagged 1" in told
    assert "left 2" in told
    check_day(cluster, "imapfilter")


# ---- fetchmail ------------------------------------------------------------------------------------------------------


def fetchmail(node: Node, directory: Path, *options: str) -> list[bytes]:
    """Fetch mail that was not fetched before, and return it."""
    host, port = node.address("imap")
    rc, fetched = directory / "fetchmailrc", directory / "fetched"
    rc.write_text(
        f"poll {host} protocol IMAP port {port} auth password user fetchmail password {PASSWORD}"
        f" sslproto '' mda \"cat >> {fetched}; echo ===== >> {fetched}\"\n",
        encoding="utf-8",
    )
    rc.chmod(0o600)
    assert FETCHMAIL is not None
    environment = {**os.environ, "HOME": str(directory), "FETCHMAILHOME": str(directory)}
    done = subprocess.run(
        [FETCHMAIL, "-f", str(rc), "--nodetach", "--nosyslog", *options],
        capture_output=True,
        timeout=PROGRAM_S,
        check=False,
        env=environment,
    )
    assert done.returncode in {0, 1}, done.stderr.decode() + done.stdout.decode()  # 1: there was no mail
    mails = fetched.read_bytes().split(b"=====\n")[:-1] if fetched.exists() else []
    fetched.unlink(missing_ok=True)
    return mails


@needs(FETCHMAIL, "fetchmail")
def test_day_with_fetchmail(cluster: Cluster, tmp_path: Path) -> None:
    """Fetchmail can neither write nor move mail: it fetches, marks as seen, and expunges."""
    first, second, third = cluster.nodes
    begin(cluster, "fetchmail")
    fetched = fetchmail(first, tmp_path, "--keep")
    assert sorted(mail.partition(b"\n\n")[2] for mail in fetched) == [
        b"This is one.\n",
        b"This is three.\n",
        b"This is two.\n",
    ]
    deliver(third, [b"Subject: four\r\n\r\nThis is four.\r\n"], ["fetchmail"])
    [four] = fetchmail(second, tmp_path)
    assert four.endswith(b"\n\nThis is four.\n")
    assert fetchmail(third, tmp_path) == []
    client = imap(third, "fetchmail")
    assert len(uids(client)) == len(uids(client, "SEEN")) == 3
    assert not uids(client, "SUBJECT", "four")
    client.logout()
