"""What nodes tell of a mail, put together and answered, where a node knows little: stories written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicator.cli.stories.mail_lines import lines
from replicator.cli.stories.mail_story import JoinedStory, NodeTold, join
from replicator.cli.stories.verdict import sentences
from replicator.cli.target import NodeUrl
from replicator.cli.times import local
from replicator.stories import Arrivals, FlagState, KeptMail, LookedAt, MailLife, MailStory, ShownMail
from resync.story.lives import Event

T_MS = 1_700_000_000_000
ALL = LookedAt(9, entries_left=False, messages=9, messages_left=0, headers=9, headers_left=0, headers_unread=0)
ARRIVED = Event("arrived", "dc1.a 2", "dc1", T_MS, uid=3)
SHOWN = ShownMail(3, (), ("dc1.a 2",), ("dc1",), T_MS)
KEPT = KeptMail(3, T_MS + 1000, T_MS + 86_400_000, has_body=True)


def life(guid: str = "aa", **members: object) -> MailLife:
    plain = MailLife(
        same="asked", guid=guid * 16, mailbox_id="bb" * 16, folder="INBOX", is_deleted=False, shown=None, kept=None,
        message_id=None, sha256="cc" * 32, size_bytes=None, received_ms=None, events=(), events_left=0, unshown=(),
        log_since_ms=None, is_whole=True,
    )  # fmt: skip
    return replace(plain, **members)  # type: ignore[arg-type]


def story(*lives: MailLife, node: str = "dc1", **members: object) -> MailStory:
    plain = MailStory(
        node=node, clock_ms=T_MS, user="alice", mailbox="INBOX", peers=("dc1", "dc2"), lives=lives, lives_left=0,
        arrivals=(), folders=(), looked_at=ALL,
    )  # fmt: skip
    return replace(plain, **members)  # type: ignore[arg-type]


def told(*stories: MailStory) -> list[NodeTold]:
    return [NodeTold(NodeUrl("h", 1, one.node), one) for one in stories]


def joined(*stories: MailStory) -> JoinedStory:
    return join(told(*stories))


def answer(*stories: MailStory) -> str:
    return " ".join(sentences(joined(*stories)))


def text(*stories: MailStory) -> str:
    nodes = told(*stories)
    return "\n".join(lines(nodes, join(nodes)))


def test_row_tells_of_an_arrival_that_has_left_the_logs() -> None:
    assert answer(story(life(shown=SHOWN))) == f"It is in INBOX once, as UID 3, put there by dc1 at {local(T_MS)}."
    undated = replace(SHOWN, saved_ms=None)
    assert "by dc1 at a time that is not known" in answer(story(life(shown=undated)))


def test_two_mails_of_which_the_logs_tell_nothing() -> None:
    other = replace(SHOWN, uid=4, saved_ms=T_MS + 60_000, placed_at=("dc2",))
    said = answer(story(life(shown=SHOWN), life("dd", same="message_id", sha256="ee" * 32, shown=other)))
    assert said == (
        "It is here twice because 2 messages with the same Message-ID were delivered or saved by clients: by dc1 at"
        f" {local(T_MS)} as UID 3 and by dc2 at {local(T_MS + 60_000)} as UID 4."
    )


def test_many_mails_are_counted_and_some_are_named() -> None:
    many = [life(f"{number:02x}", same="body", shown=replace(SHOWN, uid=number)) for number in range(10, 17)]
    said = answer(story(life(shown=SHOWN), *many))
    assert said.startswith("It is here 8 times because 8 messages with the same body")
    assert said.count("by dc1 at") == 5


@pytest.mark.parametrize(
    ("arrivals", "end"),
    [
        ((), "UID 4."),
        ((Arrivals("dc1.a 2", "dc2.a 1", False, None, None),), "UID 4, one after the other."),  # noqa: FBT003
        (
            (Arrivals("dc1.a 2", "dc2.a 1", True, None, None),),  # noqa: FBT003
            "while neither node had the other's change; their branches are still to be joined.",
        ),
        (
            (Arrivals("dc1.a 2", "dc2.a 1", True, "dc3.a 7", T_MS + 9000),),  # noqa: FBT003
            f"while neither node had the other's change; dc3 joined their branches at {local(T_MS + 9000)}.",
        ),
    ],
)
def test_arrivals_stand_to_each_other_as_the_log_says(arrivals: tuple[Arrivals, ...], end: str) -> None:
    other = Event("arrived", "dc2.a 1", "dc2", T_MS + 1, uid=4)
    lives = (
        life(shown=SHOWN, events=(ARRIVED,)),
        life("dd", same="body", shown=replace(SHOWN, uid=4), events=(other,)),
    )
    assert answer(story(*lives, arrivals=arrivals)).endswith(end)


def test_node_that_knows_of_the_merge_is_believed() -> None:
    """One node has yet to join the branches that the other has joined."""
    apart = Arrivals("dc1.a 2", "dc2.a 1", True, None, None)  # noqa: FBT003
    met = replace(apart, joined_by="dc1.a 3", joined_ms=T_MS)
    for first, second in ((apart, met), (met, apart)):
        found = joined(story(life(), arrivals=(first,)), story(life(), node="dc2", arrivals=(second,)))
        assert found.arrivals == (met,)


@pytest.mark.parametrize(
    ("kept", "end"),
    [
        (KEPT, f"at dc1 can bring it back until {local(KEPT.until_ms, 'minutes')}."),
        (replace(KEPT, has_body=False), "if another node has its body: dc1 does not."),
        (None, "No node that was asked keeps it any more, so `replicator undelete` cannot bring it back from them."),
    ],
)
def test_expunge_that_has_left_the_logs(kept: KeptMail | None, end: str) -> None:
    said = answer(story(life(kept=kept, events=(ARRIVED,), is_whole=False, log_since_ms=T_MS)))
    when = "" if kept is None else f" at {local(KEPT.expunged_ms)}"
    assert said.startswith(f"It is gone because it was expunged{when}, by a change that has left the logs.")
    assert said.endswith(end)


def test_undelete_is_recommended_where_the_body_is() -> None:
    without = story(life(kept=replace(KEPT, has_body=False, until_ms=KEPT.until_ms + 1)))
    assert "at dc2 can bring it back until" in answer(without, story(life(kept=KEPT), node="dc2"))


def test_mail_that_is_coming_is_told_before_its_like_that_is_gone() -> None:
    coming = replace(ARRIVED, entry="dc2.a 7", node="dc2", time_ms=T_MS + 5000)
    said = answer(story(life(kept=KEPT, events=(ARRIVED,)), life("dd", events=(coming,), unshown=("dc2.a 7",))))
    assert said.startswith(f"It was put there by dc2 at {local(T_MS + 5000)}, and dc1 does not show it yet")


def test_mail_that_only_a_merge_removed() -> None:
    removed = Event("removed", "dc2.a 9", "dc2", T_MS + 5, was=(3,))
    said = answer(story(life(events=(ARRIVED, removed))))
    assert "one of the branches that a merge joined had expunged it; the merge was made by dc2" in said


def test_mail_that_a_branch_expunged_and_no_merge_has_joined() -> None:
    expunged = Event("expunged", "dc2.a 9", "dc2", T_MS + 5, uid=3)
    said = answer(story(life(shown=SHOWN, events=(ARRIVED, expunged), unshown=("dc2.a 9",))))
    assert said == (
        f"It is here although it was expunged by dc2 at {local(T_MS + 5)}: that was on a branch that is still to be"
        " joined."
    )


def test_mail_that_is_only_in_another_folder() -> None:
    elsewhere = life(same="message_id", folder="Archive", shown=SHOWN)
    assert answer(story(elsewhere)) == "It is not in INBOX, as far as the nodes asked know, but in Archive."


def test_two_mails_that_had_the_uid_are_not_taken_for_one() -> None:
    """Two branches gave one UID to two mails, and a merge has given both of them others."""
    mine = life(message_id="one@x", shown=replace(SHOWN, uid=9), events=(ARRIVED,))
    theirs = life("dd", message_id="two@x", sha256="ee" * 32, shown=replace(SHOWN, uid=11))
    said = answer(story(mine, theirs))
    assert said == (
        "2 different mails have or had this UID."
        f" Message-ID <one@x>: It is in INBOX once, as UID 9, put there by dc1 at {local(T_MS)}."
        f" Message-ID <two@x>: It is in INBOX once, as UID 11, put there by dc1 at {local(T_MS)}."
    )


def test_each_of_two_mails_that_had_the_uid_is_told_with_its_likes() -> None:
    mine = life(message_id="one@x", shown=replace(SHOWN, uid=9))
    same = life("ff", same="message_id", message_id="one@x", sha256="11" * 32, shown=replace(SHOWN, uid=10))
    theirs = life("dd", sha256="ee" * 32, kept=KEPT)
    said = answer(story(mine, theirs, same))
    assert "Message-ID <one@x>: It is here twice because 2 messages with the same Message-ID" in said
    assert f"GUID {'dd' * 16}: It is gone because it was expunged" in said
    assert "INBOX still has" not in said, "the mail that is gone is like none of the others"


def test_node_that_knows_nothing_of_the_mail_does_not_show_it() -> None:
    """A node that has yet to get the entry by which the mail came tells of no life."""
    said = answer(story(life(shown=SHOWN)), story(node="dc2"))
    assert said.startswith("It is shown at dc1, and not at dc2: the nodes have yet to become equal. It is in INBOX")


def test_nodes_that_show_it_under_different_uids() -> None:
    said = answer(story(life(shown=SHOWN)), story(life(shown=replace(SHOWN, uid=9)), node="dc2"))
    assert said.startswith("It has UID 3 at dc1 and 9 at dc2: the nodes have yet to become equal.")


def test_gone_mail_whose_like_is_still_there() -> None:
    other = life("dd", same="body", shown=replace(SHOWN, uid=8))
    assert answer(story(life(kept=KEPT), other)).endswith("INBOX still has UID 8 with the same body or Message-ID.")


def test_events_are_told_with_what_each_node_has_of_them() -> None:
    flagged = Event("flags_set", "dc2.a 5", "dc2", T_MS + 1000, uid=3, flags=("\\Seen",))
    old = Event("flags_set", "dc1.a 3", "dc1", T_MS - 1000, uid=3, flags=("$Old",))
    shown = replace(SHOWN, flags=(FlagState("\\Seen", is_set=True, node="dc2", time_ms=T_MS + 1000),))
    whole = life(
        shown=shown, events=(old, ARRIVED, flagged), unshown=("dc2.a 5",), is_whole=False, log_since_ms=T_MS - 1
    )
    behind = life(shown=SHOWN, events=(ARRIVED,), is_whole=False, log_since_ms=T_MS)
    shown_lines = text(story(whole), story(behind, node="dc2"))
    assert f"   \\Seen set by dc2 at {local(T_MS + 1000)}\n" in shown_lines
    assert (
        f"   {local(T_MS + 1000)}  dc2  \\Seen set (it waits at dc1, not there yet at dc2)  [dc2.a 5]\n" in shown_lines
    )
    assert f"   {local(T_MS - 1000)}  dc1  $Old set  [dc1.a 3]\n" in shown_lines, "dc2's log does not tell of that time"
    assert f"   the log of dc2 does not tell what was before {local(T_MS)}\n" in shown_lines


def test_events_that_a_node_has_left_out_are_not_missing_there() -> None:
    flagged = Event("flags_set", "dc2.a 5", "dc2", T_MS + 1000, uid=3, flags=("\\Seen",))
    some = life(shown=SHOWN, events=(ARRIVED,), events_left=7)
    shown_lines = text(story(life(shown=SHOWN, events=(ARRIVED, flagged))), story(some, node="dc2"))
    assert "not there yet" not in shown_lines
    assert "   dc2 knows of 7 more changes, of flags or older ones: see `replicator log show`\n" in shown_lines


def test_event_of_which_one_node_knows_more_is_told_in_full() -> None:
    short = Event("renumbered", "dc1.a 9", "dc1", T_MS, uid=9)
    whole = replace(short, was=(3,))
    for first, second in ((short, whole), (whole, short)):
        found = joined(story(life(events=(first,))), story(life(events=(second,)), node="dc2"))
        assert [happened.event for happened in found.lives[0].events] == [whole]


def test_what_was_not_looked_at_is_said() -> None:
    limits = replace(ALL, entries_left=True, messages_left=1, headers_left=3, headers_unread=2)
    assert (
        "dc1 has not looked at everything: its log has more than 9 entries, 1 mail may have the same body, 5 mails may"
        " have the same Message-ID and 4 mails like it are not listed\n"
    ) in text(story(life(shown=SHOWN), looked_at=limits, lives_left=4))
    assert "has not looked at everything" not in text(story(life(shown=SHOWN)))
    assert "not asked: dc2; name them" in text(story(life(shown=SHOWN)))
