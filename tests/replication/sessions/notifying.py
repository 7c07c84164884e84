"""A client that asks to be notified, and knows in the end all that it asked for (RFC 5465)."""

from __future__ import annotations

from tests.imap.client import connected, services
from tests.replication.cluster import USER, Node
from tests.replication.sessions.conversation import Step
from tests.replication.sessions.notified import (
    OTHER_CHOICES,
    SELECTED_CHOICES,
    Counters,
    Notified,
    list_of,
    status_of,
)
from tests.replication.sessions.searching import Searcher
from tests.replication.sessions.told import Told

QUIET_S = 6.0  # as long as a node that lies behind may take to hear of everything


class Notifying(Searcher):
    """A client that sends NOTIFY."""

    async def _notify(self, step: Step, told: Told | None) -> None:
        """Say what the client wants to hear of from now on."""
        if told is not None and told.contexts:
            return  # results of searches would depend on what is not told
        selected = SELECTED_CHOICES[step.a % len(SELECTED_CHOICES)]
        others = OTHER_CHOICES[step.b % len(OTHER_CHOICES)]
        await self._begin_notify(Notified(selected, others, status=bool((step.a + step.b) & 1 and others)))

    async def _begin_notify(self, new: Notified) -> None:
        old = self.aware.notified
        before, selected = (await self._names() if new.others else set()), await self._selected()
        if " OK " not in await self.run(new.command, notified=new):
            self.aware.notified = old
            return
        if new.others:
            new.unsure |= set() if new.status else before
            new.unsure |= selected | await self._selected()
            new.check_status(before & await self._names())

    async def _names(self) -> set[str]:
        """Learn which folders there are, and what the user has subscribed to."""
        if (notified := self.aware.notified) is not None:
            notified.folders, notified.subscribed = set(), set()
        self.listed = set()
        await self.run('LIST (SUBSCRIBED) "" "*"')
        self.listed = set()
        await self.run('LIST "" "*" RETURN (SUBSCRIBED)')
        return self.listed

    async def _change_names(self, command: str, *names: str) -> None:
        """Change names of folders, and learn what has become of them: the client is not told."""
        await self.run(command)
        if (notified := self.aware.notified) is not None and notified.others:
            notified.forget(*names)
            await self._names()

    async def _subscribe(self, step: Step) -> None:
        verb, name = ("SUBSCRIBE", "UNSUBSCRIBE")[step.b % 2], ("INBOX", "A", "B")[step.a % 3]
        await self._change_names(f"{verb} {name}")

    async def _annotate(self, step: Step) -> None:
        name = ('""', "INBOX", "A")[step.a % 3]
        await self.run(f'SETMETADATA {name} (/private/comment "c{self.commands}")')

    async def check_notified(self, node: Node) -> None:
        """Check what the client knows by what it was told unasked, now that nothing changes any more."""
        if (notified := self.aware.notified) is None:
            return
        await self.hear_out(QUIET_S)
        if self.told is not None and notified.wants_new and self.told.is_open:
            self._check_new(self.told)
            [name] = await self._selected()
            uids = [*(await node.view(name)).messages]
            known = len(self.told.slots)
            assert known == len(uids) or (known > len(uids) and not notified.is_at_once), f"{known} messages are told"
        there, subscribed = await _look(node)
        notified.check(there, subscribed, await self._selected())
        if notified.others and self.number % 2:  # now the client hears of the mailbox that it had selected
            await self._deselect("UNSELECT")
            await self.hear_out(QUIET_S)
            notified.check(there, subscribed, set())
        await self._begin_notify(Notified(SELECTED_CHOICES[-1], (), status=False))

    @staticmethod
    def _check_new(told: Told) -> None:
        unknown = [slot for slot in told.to_describe if slot in told.slots and None in {slot.uid, slot.flags}]
        assert not unknown, f"FETCH of new messages is not told: {unknown}"

    async def _selected(self) -> set[str]:
        """Return the name of the selected mailbox now, which others may have renamed; empty if there is none."""
        told, node = self.told, self.around.node(self.at)
        folders = await node.mail.folders(USER) if told is not None else ()
        return {one.name for one in folders if told is not None and f"F{one.mailbox_id.hex()}" == told.mailbox_id}


async def _look(node: Node) -> tuple[dict[str, Counters], set[str]]:
    """Return what LIST and STATUS tell another client: the folders with their counters, and the subscriptions."""
    there: dict[str, Counters] = {}
    subscribed: set[str] = set()
    async with connected(services(node.mail)) as client:
        await client.run(f"LOGIN {USER} {USER[::-1]}")
        for command in (
            'LIST (SUBSCRIBED) "" "*"',
            'LIST "" "*" RETURN (STATUS (MESSAGES UIDNEXT UIDVALIDITY UNSEEN HIGHESTMODSEQ))',
        ):
            for line in await client.run(command):
                if (status := status_of(line)) is not None:
                    there[status[0]] = status[1]
                elif (listed := list_of(line)) is not None and "\\Subscribed" in listed[1]:
                    subscribed.add(listed[0])
    return there, subscribed
