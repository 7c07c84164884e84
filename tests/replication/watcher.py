"""An IMAP client that believes what NOTIFY tells it of all folders (RFC 5465 section 5), and nothing else."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.imap.client import Client

Counters = dict[str, str]

NOTIFY = (
    "NOTIFY SET STATUS (personal (MessageNew MessageExpunge FlagChange MailboxName SubscriptionChange"
    " MailboxMetadataChange ServerMetadataChange))"
)
ITEMS = "(MESSAGES UIDNEXT UIDVALIDITY UNSEEN HIGHESTMODSEQ)"


@dataclass
class Beliefs:
    """The folders with their counters, None if unknown, the subscriptions, and values of annotations, None if unknown.

    The name "" stands for the account.
    """

    folders: dict[str, Counters | None] = field(default_factory=dict)
    annotations: dict[str, dict[str, str | None]] = field(default_factory=dict)
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
        elif found := re.fullmatch(r'\* METADATA "(.*?)" \((.*)\)', line):
            self.annotations[found[1]] = dict(re.findall(r'(/\S+) "(\w*)"', found[2]))
        elif found := re.fullmatch(r'\* METADATA "(.*?)"((?: /\S+)+)', line):
            assert found[1] in {"", *self.folders}, "METADATA of a folder of which no LIST has told"
            self.annotations.setdefault(found[1], {}).update(dict.fromkeys(found[2].split()))
        else:
            raise AssertionError(f"not a line that NOTIFY asked for: {line}")

    def _listed(self, name: str, attributes: list[str], old_name: str | None) -> None:
        if old_name is not None:
            self._move(old_name, name)
        elif "\\NonExistent" in attributes:
            self.folders.pop(name, None)
            self.annotations.pop(name, None)
        else:
            self.folders.setdefault(name, None)
        (self.subscribed.add if "\\Subscribed" in attributes else self.subscribed.discard)(name)

    def _move(self, old: str, new: str) -> None:
        below = [] if old == "INBOX" else [name for name in self.folders if name.startswith(old + "/")]
        for name in [old, *below]:
            self.folders[new + name.removeprefix(old)] = self.folders.pop(name, None)
            self.annotations[new + name.removeprefix(old)] = self.annotations.pop(name, {})
        if old == "INBOX":  # both have its annotations (RFC 5464 section 4.1)
            self.folders["INBOX"], self.annotations["INBOX"] = None, {**self.annotations[new]}

    def agree(self, seen: "Beliefs") -> None:
        """Check that these beliefs, as far as known, equal the state that is seen. Then take over the rest of it."""
        assert self.folders == seen.folders
        assert self.subscribed == seen.subscribed
        for name in ("", *seen.folders):
            known, there = self.annotations.get(name, {}), seen.annotations.get(name, {})
            for entry in known.keys() | there.keys():
                assert known.get(entry, "") in {None, there.get(entry, "")}, f"{entry} of {name!r} is not told"
        self.annotations = seen.annotations


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
        self.beliefs.annotations = await annotations(self._client, self.beliefs.folders)
        self.beliefs.is_new = False

    async def listen(self) -> None:
        """Take in all that the server says, until cancelled."""
        while line := await self._client.line():
            self.lines += 1
            self.beliefs.hear(line)


async def annotations(client: Client, folders: Iterable[str]) -> dict[str, dict[str, str | None]]:
    """Return what GETMETADATA says of these folders and of the account."""
    seen = Beliefs()
    for name in ("", *folders):
        for line in (await client.run(f'GETMETADATA (DEPTH infinity) "{name}" (/private /shared)'))[:-1]:
            seen.hear(line)
    return seen.annotations


async def look(client: Client) -> Beliefs:
    """Return what LIST, STATUS and GETMETADATA say."""
    seen = Beliefs()
    for line in (await client.run('LIST (SUBSCRIBED) "" "*"'))[:-1]:
        seen.hear(line)
    seen.folders = {}
    for line in (await client.run(f'LIST "" "*" RETURN (SUBSCRIBED STATUS {ITEMS})'))[:-1]:
        seen.hear(line)
    seen.annotations = await annotations(client, seen.folders)
    return seen
