"""A client that believes what it is told always ends with what the mailbox has."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import UidSet
from replicator.mailstore import MailStore, NewMessage
from replicator.view import MailboxView
from tests.imap.client import Client, connected, services
from tests.one_node import one_node

FLAGS = st.sampled_from(["\\Seen", "\\Deleted", "\\Flagged", "work"])
POSITIONS = st.integers(0, 30)
ELSEWHERE = st.one_of(
    st.tuples(st.just("deliver"), st.just(""), POSITIONS),
    st.tuples(st.just("expunge"), st.just(""), POSITIONS),
    st.tuples(st.just("add"), FLAGS, POSITIONS),
    st.tuples(st.just("remove"), FLAGS, POSITIONS),
)
COMMANDS = st.sampled_from(
    [
        "NOOP",
        "FETCH 1:* (FLAGS)",
        "UID FETCH 1:* (FLAGS)",
        "FETCH 1:* BODY[TEXT]",
        "STORE 1:* +FLAGS (\\Flagged)",
        "STORE 1:* -FLAGS.SILENT (\\Flagged)",
        "UID STORE 1:* +FLAGS.SILENT (\\Flagged)",
        "SEARCH UNSEEN",
        "EXPUNGE",
        "COPY 1:* INBOX",
        "UID MOVE 2:3 INBOX",
    ]
)
Steps = list[tuple[list[tuple[str, str, int]], str]]
STEPS = st.lists(st.tuples(st.lists(ELSEWHERE, max_size=3), COMMANDS), min_size=1, max_size=8)


class Believer:
    """What a client knows: for each message, in order, its flags as last told."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.flags: list[frozenset[str] | None] = []

    async def run(self, command: str) -> None:
        for line in await self.client.run(command):
            if found := re.fullmatch(r"\* (\d+) EXISTS", line):
                assert int(found[1]) >= len(self.flags)
                self.flags += [None] * (int(found[1]) - len(self.flags))
            elif found := re.fullmatch(r"\* (\d+) EXPUNGE", line):
                assert not command.startswith(("FETCH", "STORE", "SEARCH")), "RFC 3501 section 7.4.1"
                del self.flags[int(found[1]) - 1]
            elif found := re.fullmatch(r"\* (\d+) FETCH .*FLAGS \((.*?)\).*", line):
                self.flags[int(found[1]) - 1] = frozenset(found[2].split()) - {"\\Recent"}
        if ".SILENT" in command:  # an OK says that it has come about; what others did comes with it
            await self.run("FETCH 1:* (FLAGS)")


async def change(mail: MailStore, view: MailboxView, what: str, flag: str, position: int) -> None:
    uids = UidSet.of([view.messages.keys()[position % len(view.messages)]]) if view.messages else UidSet()
    if what == "deliver":
        await mail.save(await mail.folder("alice", "INBOX"), NewMessage(b"Subject: x\r\n\r\nx"))
    elif what == "expunge":
        await mail.expunge(view, uids)
    else:
        flags = frozenset({flag})
        await mail.store_flags(
            view,
            uids,
            added=flags if what == "add" else frozenset(),
            removed=flags if what == "remove" else frozenset(),
        )


async def follow(steps: Steps) -> None:
    with TemporaryDirectory() as directory:
        async with one_node(Path(directory)) as mail:
            await follow_in(mail, steps)


async def follow_in(mail: MailStore, steps: Steps) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for _ in range(4):
        await mail.save(inbox, NewMessage(b"Subject: x\r\n\r\nx"))
    view = await mail.open_mailbox(inbox)
    async with connected(services(mail)) as client:
        await client.log_in("alice")
        believer = Believer(client)
        await believer.run("SELECT INBOX")
        await believer.run("FETCH 1:* (FLAGS)")
        for changes, command in steps:
            for what, flag, position in changes:
                await change(mail, view, what, flag, position)
            await believer.run(command)
        await believer.run("NOOP")
        assert len(believer.flags) == len(view.messages)
        for told, message in zip(believer.flags, view.messages.values(), strict=True):
            assert told in {None, message.flags}


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_client_that_believes_what_it_is_told_is_right(steps: Steps) -> None:
    trio.run(follow, steps)
