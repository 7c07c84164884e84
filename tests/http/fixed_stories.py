"""The stories of a mailbox that forked, as a test sets them."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from replicator.stories import (
    AbsentEntry,
    AskedMail,
    LoggedEntry,
    LoggedHistory,
    MailboxStory,
    MailStory,
    ShownElsewhere,
    WaitingEntry,
)
from resync.story.deeds import Deed, Renumbered

SECOND_MS = 1_000
ID = "ab" * 16


def entry(name: str, *predecessors: str, deed: Deed | None = None, waits: bool = False) -> LoggedEntry:
    """Return an entry as a log has it."""
    deeds = (deed or Deed("arrived", 1, "1"),)
    return LoggedEntry(name, predecessors, name.partition(".")[0], SECOND_MS, 1, "waiting" if waits else "shown", deeds)


def forked(word: str) -> tuple[LoggedEntry, ...]:
    """Return a history of two branches that a merge has joined, and a third one that waits. `word`: a folder's name."""
    merge = Deed("merged", 1, "9", renumbered=(Renumbered(9, (4,)),), removed=1)
    return (
        entry("dc1.1 6", "dc1.1 5", deed=merge),
        entry("dc3.1 1", "dc1.1 2", waits=True),
        entry("dc1.1 5", "dc1.1 4", "dc2.1 1", deed=merge),
        entry("dc2.1 1", "dc1.1 2", deed=Deed("flags_set", 2, "1:3,7", names=(word,))),
        entry("dc1.1 4", "dc1.1 2"),
        entry("dc1.1 2", "dc1.1 1", deed=Deed("folder_renamed", folder=word, was=word)),
    )


@dataclass
class FixedStories:
    """A node's stories. `word` stands wherever others have chosen the words; `asked`: how many entries, each time."""

    word: str = "word"
    asked: list[int] = field(default_factory=list)
    is_cut: bool = False
    released: trio.Event | None = None

    async def history(self, user: str, mailbox: str | None, *, last: int, since_ms: int) -> LoggedHistory:
        assert since_ms == 0
        self.asked.append(last)
        if self.released is not None:
            await self.released.wait()
        absent = (AbsentEntry("dc1.1 1", "left"), AbsentEntry("dc4.1 1", "missing"))
        return LoggedHistory("dc1", user, mailbox, ID, "dc1.1 6", forked(self.word), absent, self.is_cut)

    async def mailbox(self, user: str, name: str) -> MailboxStory:
        waits = (WaitingEntry("dc3.1 1", "dc3", SECOND_MS, None),)
        nodes = (ShownElsewhere("dc2", "same"), ShownElsewhere("dc3", "forked"), ShownElsewhere("dc4", "unreachable"))
        return MailboxStory(
            node="dc1",
            clock_ms=91_000,
            user=user,
            mailbox=name,
            mailbox_id=ID,
            is_deleted=False,
            uidvalidity=77,
            risen=1,
            uidnext=10,
            highestmodseq=12,
            messages=4,
            unseen=1,
            size_bytes=4096,
            digest=ID,
            head="dc1.1 6",
            head_ms=SECOND_MS,
            is_head_logged=True,
            master="dc1",
            master_since_ms=SECOND_MS,
            master_how="named",
            term=3,
            waiting=1,
            branches=1,
            waiting_since_ms=SECOND_MS,
            waiting_entries=waits,
            why_apart=self.word,
            abandoned=0,
            is_unproven=False,
            is_postponed=True,
            checkpoint=None,
            checkpoint_ms=None,
            kept_messages=0,
            kept_bytes=0,
            kept_since_ms=None,
            keep_expunged_s=86400.0,
            nodes=(*nodes, ShownElsewhere("dc5", "unreachable", why=self.word)),
        )

    async def mail(self, user: str, name: str, asked: AskedMail) -> MailStory:
        raise NotImplementedError(f"{user} {name} {asked}")
