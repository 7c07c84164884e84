"""A client's cache, kept only by untagged responses, always ends up equal to the mailbox."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import UidSet
from replicator.mail.mailstore import MailStore, NewMessage
from replicator.mail.view import MailboxView
from tests.effort import examples
from tests.imap.client import Client, connected, services
from tests.one_node import one_node

FLAGS = st.sampled_from(["\\Seen", "\\Deleted", "\\Flagged", "work"])
POSITIONS = st.integers(0, 30)
OTHER_CHANGES = st.one_of(
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
STEPS = st.lists(st.tuples(st.lists(OTHER_CHANGES, max_size=3), COMMANDS), min_size=1, max_size=8)


class CachingClient:
    """A client that caches the flags of each message as the server last told them; None if it has not."""

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
        if ".SILENT" in command:  # the OK confirms the change; other sessions' changes come with it
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


async def run_steps(steps: Steps) -> None:
    with TemporaryDirectory() as directory:
        async with one_node(Path(directory)) as mail:
            await run_steps_in(mail, steps)


async def run_steps_in(mail: MailStore, steps: Steps) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for _ in range(4):
        await mail.save(inbox, NewMessage(b"Subject: x\r\n\r\nx"))
    view = await mail.open_mailbox(inbox)
    async with connected(services(mail)) as client:
        await client.log_in("alice")
        client_cache = CachingClient(client)
        await client_cache.run("SELECT INBOX")
        await client_cache.run("FETCH 1:* (FLAGS)")
        for changes, command in steps:
            for what, flag, position in changes:
                await change(mail, view, what, flag, position)
            await client_cache.run(command)
        await client_cache.run("NOOP")
        assert len(client_cache.flags) == len(view.messages)
        for told, message in zip(client_cache.flags, view.messages.values(), strict=True):
            assert told in {None, message.flags}


@settings(max_examples=examples(30, 60), deadline=None)
@given(STEPS)
def test_clients_cache_equals_the_mailbox(steps: Steps) -> None:
    trio.run(run_steps, steps)
