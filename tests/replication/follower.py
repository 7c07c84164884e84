"""An IMAP client that relies on untagged responses, and checks that they are legal (RFC 3501 section 7.4)."""

import re

from tests.imap.client import Client


class Follower:
    """`uids` and `flags` are by sequence number; None stands for a value that the server has not sent yet.

    `ids_by_uid`: UID -> EMAILID (RFC 8474) at this node, shared by all clients of the node.
    """

    def __init__(self, client: Client, ids_by_uid: dict[int, str]) -> None:
        self.client = client
        self.uids: list[int | None] = []
        self.flags: list[frozenset[str] | None] = []
        self.uidnext = 0
        self._ids_by_uid = ids_by_uid

    async def run(self, command: str) -> str:
        """Run a command and return its tagged response."""
        *told, answer = await self.client.run(command)
        self.hear(told, command)
        return answer

    async def look(self) -> None:
        """Fetch UIDs, flags and EMAILIDs of all messages."""
        await self.run("FETCH 1:* (UID FLAGS EMAILID)")

    def hear(self, lines: list[str], command: str) -> None:
        """Take in the untagged responses that came while this command ran."""
        grown = False
        for line in lines:
            if found := re.fullmatch(r"\* (\d+) EXISTS", line):
                self._exists(int(found[1]))
                grown = True
            elif found := re.fullmatch(r"\* (\d+) EXPUNGE", line):
                assert not command.startswith(("FETCH", "STORE", "SEARCH")), "RFC 3501 section 7.4.1"
                assert not grown or command == "IDLE", "an EXPUNGE came after an EXISTS"
                del self.uids[int(found[1]) - 1], self.flags[int(found[1]) - 1]
            elif found := re.fullmatch(r"\* (\d+) FETCH \((.*)\)", line):
                self._fetched(int(found[1]) - 1, found[2])
            elif found := re.match(r"\* OK \[UIDNEXT (\d+)\]", line):
                self.uidnext = int(found[1])

    def _exists(self, count: int) -> None:
        new = count - len(self.uids)
        assert new >= 0
        self.uids += [None] * new
        self.flags += [None] * new

    def _fetched(self, position: int, items: str) -> None:
        if found := re.search(r"FLAGS \((.*?)\)", items):
            self.flags[position] = frozenset(found[1].split()) - {"\\Recent"}
        if (found := re.search(r"UID (\d+)", items)) is None:
            return
        uid = int(found[1])
        assert self.uids[position] in {None, uid}, "a sequence number stands for another message"
        self.uids[position] = uid
        known = [each for each in self.uids if each is not None]
        assert known == sorted(set(known)), "RFC 3501 section 2.3.1.1"
        if found := re.search(r"EMAILID \((\w+)\)", items):
            assert self._ids_by_uid.setdefault(uid, found[1]) == found[1], "one UID, two messages"
