import subprocess
import sys
from collections.abc import Mapping

import pytest

from benchmarks.demo import account
from benchmarks.demo.account import Check, Folder, Ledger, Mail, Shown

LIMIT_S = 120


@pytest.mark.long
def test_the_demo_keeps_its_promises() -> None:
    command = [sys.executable, "-m", "benchmarks.demo"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BROKEN" not in done.stdout
    conflicts = done.stdout.partition("What conflicted")[2]
    for what in (
        "folder Projects",
        "folder Travel",
        "UID 5 of INBOX",
        "UID 7 of INBOX",
        "flags of “Welcome”",
        "mail “",
    ):
        assert f"\n {what}" in conflicts
    assert conflicts.count("\n kept ") == 7
    assert "something to resolve" not in conflicts
    assert 'With "uidvalidity"' in conflicts


# The demo's checks must be able to fail.


def mail(subject: str, *flags: str, body: str = "x") -> Mail:
    return Mail(f"M{subject}", subject, frozenset(flags), body.encode())


def inbox(uidvalidity: int = 1, /, **mails: Mail) -> Shown:
    """Return a state with these mails in INBOX; `u5=mail(...)`: under UID 5."""
    return {"INBOX": Folder(uidvalidity, {int(uid[1:]): one for uid, one in mails.items()})}


LEDGER = Ledger(
    accepted={("INBOX", "kept"): b"x", ("INBOX", "gone"): b"x"},
    removed={("INBOX", "gone")},
    flags={(("INBOX", "kept"), r"\Seen"): True},
)
GOOD = inbox(u1=mail("kept", r"\Seen"))


def checks(final: Mapping[str, Shown]) -> list[Check]:
    return [
        account.nothing_lost(LEDGER, final),
        account.nothing_back(LEDGER, final),
        account.flags_kept(LEDGER, final),
        account.all_alike(final, dict.fromkeys(final, "d1"), dict.fromkeys(final, 0)),
        account.uids_mean_one_mail([{"dc1": GOOD, "dc2": GOOD}, final]),
        account.uidvalidity_kept(GOOD, final["dc1"]),
    ]


def test_checks_pass_where_nodes_agree_with_the_ledger() -> None:
    assert all(check.kept for check in checks({"dc1": GOOD, "dc2": GOOD}))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (inbox(), "missing or wrong: 'kept' in INBOX at dc1"),
        ({}, "missing or wrong: 'kept' in INBOX at dc1"),
        (inbox(u1=mail("kept", r"\Seen"), u2=mail("kept", r"\Seen")), "missing or wrong: 'kept' in INBOX at dc1"),
        (inbox(u1=mail("kept", r"\Seen", body="y")), "missing or wrong: 'kept' in INBOX at dc1"),
        (inbox(u1=mail("kept", r"\Seen"), u2=mail("gone")), "back: 'gone' in INBOX at dc1"),
        (inbox(u1=mail("kept")), r"not: \Seen of 'kept' at dc1"),
        (inbox(u1=mail("other"), u2=mail("kept", r"\Seen")), "reused: dc1: UID 1 of INBOX"),
        (inbox(2, u1=mail("kept", r"\Seen")), "UIDVALIDITY has changed of INBOX"),
    ],
)
def test_checks_find_what_is_wrong_at_one_node(wrong: Shown, says: str) -> None:
    found = checks({"dc1": wrong, "dc2": GOOD})
    assert says in [check.detail for check in found if not check.kept]
    assert not next(check for check in found if "show the same" in check.promise).kept


@pytest.mark.parametrize(("digests", "waiting"), [(("a", "b"), (0, 0)), (("a", "a"), (0, 1))])
def test_nodes_with_other_digests_or_waiting_entries_are_not_alike(
    digests: tuple[str, str], waiting: tuple[int, int]
) -> None:
    sids, final = ("dc1", "dc2"), {"dc1": GOOD, "dc2": GOOD}
    assert not account.all_alike(
        final, dict(zip(sids, digests, strict=True)), dict(zip(sids, waiting, strict=True))
    ).kept


@pytest.mark.parametrize(
    ("heard", "final", "legal"),
    [
        (["* 3 EXPUNGE", "* 4 EXISTS", "* 1 FETCH (FLAGS ())"], 4, True),
        (["* 3 EXPUNGE", "* 4 EXISTS"], 5, False),
        (["* 4 EXPUNGE", "* 4 EXISTS"], 4, False),
        (["* 2 EXISTS"], 2, False),
    ],
)
def test_session_may_hear_only_what_imap_allows(heard: list[str], final: int, *, legal: bool) -> None:
    assert account.session_is_legal(3, heard, final).kept is legal


def test_conflicts_are_listed_with_their_outcome() -> None:
    before = inbox(u1=mail("both"), u2=mail("dropped"))
    left = inbox(u1=mail("both", r"\Seen"), u3=mail("ours"))
    right = inbox(u1=mail("both", r"\Flagged"), u2=mail("dropped", r"\Seen"), u3=mail("theirs"))
    now = inbox(u1=mail("both", r"\Seen", r"\Flagged"), u4=mail("ours"), u5=mail("theirs"))
    found = account.conflicts([before, left], [before, right], now)
    assert [(one.what, one.left, one.right, one.now) for one in found] == [
        ("UID 3 of INBOX", "“ours”", "“theirs”", "“ours” 3 → 4; “theirs” 3 → 5; 3 is unused"),
        ("flags of “both”", r"\Seen", r"\Flagged", r"\Flagged \Seen"),
        ("mail “dropped”", "expunged", r"\Seen", "expunged"),
    ]


def test_uid_of_mail_expunged_before_the_heal_is_a_conflict() -> None:
    left, right = [inbox(), inbox(u1=mail("ours")), inbox()], [inbox(), inbox(u1=mail("theirs"))]
    (found,) = account.conflicts(left, right, inbox(u2=mail("theirs")))
    assert (found.left, found.now) == ("“ours”, then expunged", "“theirs” 1 → 2; 1 is unused")


def test_folders_created_by_both_or_deleted_by_one_are_conflicts() -> None:
    empty, used = Folder(1, {}), Folder(1, {1: mail("late")})
    left, right = {"Shared": used, "New": Folder(2, {})}, {"New": Folder(3, {})}
    now = {"Shared": used, "New": Folder(4, {})}
    found = account.conflicts([{"Shared": empty}, left], [{"Shared": empty}, right], now)
    assert [(one.what, one.left, one.right, one.now) for one in found] == [
        ("folder New", "created, UIDVALIDITY 2: empty", "created, UIDVALIDITY 3: empty", "UIDVALIDITY 4: empty"),
        ("folder Shared", "1 mails, new: “late”", "deleted", "UIDVALIDITY 1: “late”"),
    ]
