"""An IMAP client that believes what NOTIFY tells it of all folders (RFC 5465 section 5), and nothing else."""

import re
from dataclasses import dataclass, field

from tests.imap.client import Client

Counters = dict[str, str]

NOTIFY = "NOTIFY SET STATUS (personal (MessageNew MessageExpunge FlagChange MailboxName SubscriptionChange))"
ITEMS = "(MESSAGES UIDNEXT UIDVALIDITY UNSEEN HIGHESTMODSEQ)"


@dataclass
class Beliefs:
    """The folders with their counters, None if unknown, and the subscriptions."""

    folders: dict[str, Counters | None] = field(default_factory=dict)
    subscribed: set[str] = field(default_factory=set)
    is_new: bool = True  # the client has not learned yet which folders there are

    def hear(self, line: str) -> None:
        """Take in an untagged response."""
        if found := re.fullmatch(r'\* STATUS "(.*)" \((.*)\)', line):
            assert self.is_new or found[1] in self.folders, "a STATUS of a folder of which no LIST has told"
            words = found[2].split()
            self.folders[found[1]] = dict(zip(words[::2], words[1::2], strict=True))
        elif found := re.fullmatch(r'\* LIST \((.*?)\) "/" "(.*?)"(?: \("OLDNAME" \("(.*)"\)\))?', line):
            self._listed(found[2], found[1].split(), found[3])
        else:
            raise AssertionError(f"not a line that NOTIFY asked for: {line}")

    def _listed(self, name: str, attributes: list[str], old_name: str | None) -> None:
        if old_name is not None:
            self._move(old_name, name)
        elif "\\NonExistent" in attributes:
            self.folders.pop(name, None)
        else:
            self.folders.setdefault(name, None)
        (self.subscribed.add if "\\Subscribed" in attributes else self.subscribed.discard)(name)

    def _move(self, old: str, new: str) -> None:
        below = [] if old == "INBOX" else [name for name in self.folders if name.startswith(old + "/")]
        for name in [old, *below]:
            self.folders[new + name.removeprefix(old)] = self.folders.pop(name, None)
        if old == "INBOX":
            self.folders["INBOX"] = None


class Watcher:
    """A client that has sent NOTIFY. `listen` must run."""

    def __init__(self, client: Client) -> None:
        self.beliefs = Beliefs()
        self.lines = 0
        self._client = client

    async def begin(self) -> None:
        """Send NOTIFY, and learn which folders there are."""
        for command in (NOTIFY, 'LIST "" "*" RETURN (SUBSCRIBED)'):
            *told, end = await self._client.run(command)
            assert " OK " in end
            for line in told:
                self.beliefs.hear(line)
        self.beliefs.is_new = False

    async def listen(self) -> None:
        """Take in all that the server says, until cancelled."""
        while line := await self._client.line():
            self.lines += 1
            self.beliefs.hear(line)


async def look(client: Client) -> Beliefs:
    """Return what LIST and STATUS say."""
    seen = Beliefs()
    for line in (await client.run('LIST (SUBSCRIBED) "" "*"'))[:-1]:
        seen.hear(line)
    seen.folders = {}
    for line in (await client.run(f'LIST "" "*" RETURN (SUBSCRIBED STATUS {ITEMS})'))[:-1]:
        seen.hear(line)
    return seen
