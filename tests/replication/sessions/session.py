"""The steps of one client: what people and their programs do with mail."""

from __future__ import annotations

import re

from tests.replication.cluster import USER, Node
from tests.replication.sessions.conversation import LEARN, Step
from tests.replication.sessions.facts import Compared, Place
from tests.replication.sessions.notifying import Notifying
from tests.replication.sessions.searches import Slot, numbers_of, printed
from tests.replication.sessions.told import Cache, Told

FOLDERS = ("INBOX", "A", "B", "C")
FREQUENT = (0, 0, 0, 0, 0, 1, 2, 3)
"""Places in FOLDERS: most steps concern one folder, so that they meet."""

NEEDS_ALL = {"search", "sort", "context", "compare"}
"""Steps of clients that know all changes up to their command, which NOTIFY may keep back, or tell at any time."""

FLAGS = ("\\Seen", "\\Deleted", "\\Flagged", "k1", "k2", "K1")


def folder(number: int) -> str:
    """Return the folder that a step means."""
    return FOLDERS[FREQUENT[number % len(FREQUENT)]]


class Session(Notifying):
    """A client that carries out the steps that it is given."""

    async def do(self, step: Step) -> None:
        """Carry out a step. Raises LeftError."""
        await self.connect(self.at)
        if self.aware.notified is not None and step.kind in NEEDS_ALL:
            step = step._replace(kind="noop")
        if step.kind in {"enable", "status", "append", "rename", "create", "subscribe", "annotate", "select", "resume"}:
            await getattr(self, f"_{step.kind}")(step)
            return
        if step.kind == "notify" and step.who & 1:  # without a selected mailbox, too
            await self._notify(step, self.told)
            return
        if self.told is None:
            await self._select(step._replace(b=0))
        if self.told is not None:
            await getattr(self, f"_{step.kind}")(step, self.told)
        if self.told is not None and self.told.contexts and self.aware.qresync:
            await self.learn(self.told)  # else VANISHED may name a message of which it does not know which it is

    async def _enable(self, step: Step) -> None:
        self.aware.condstore, self.aware.qresync = True, self.aware.qresync or step.a % 2 == 1
        await self.run("ENABLE " + ("CONDSTORE", "QRESYNC")[step.a % 2])

    async def _select(self, step: Step, parameters: str = "") -> None:
        name, verb = folder(step.a), ("SELECT", "EXAMINE")[step.b % 2]
        if step.b & 2 and not parameters:
            parameters, self.aware.condstore = " (CONDSTORE)", True
        await self._deselect("UNSELECT")
        self.told = Told(self.sid, name, self.around.facts, self.aware, read_only=step.b % 2 == 1)
        answer = await self.run(f"{verb} {name}{parameters}")
        if " OK " not in answer:
            self.told = None

    async def _resume(self, step: Step) -> None:
        """Bring the cache up to date at a node, and compare it with all that is there (RFC 7162 section 3.2.5)."""
        if self.told is not None and self.told.is_open:
            self.cache = self.told.cache()
        if (cache := self.cache) is None:
            return
        if step.b & 1 or self.aware.notified is not None or self.sid != self.around.node(step.a).sid:
            await self.leave()
            await self.connect(step.a)
        await self._deselect("UNSELECT")
        await self._enable(step._replace(a=1))
        resync = f"{cache.uidvalidity} {max(1, cache.modseq)}"
        if cache.messages and step.b & 2:
            resync += f" {printed(cache.messages)}"
            if step.b & 4:
                resync += f" (1:{len(cache.messages)} {printed(cache.messages)})"
        epoch = self.around.epoch()
        named = step._replace(a=FREQUENT.index(FOLDERS.index(cache.name)), b=0)
        await self._select(named, f" (QRESYNC ({resync}))")
        if self.told is None:
            return
        if self.told.uidvalidity != cache.uidvalidity:
            assert not self.told.earlier
            return
        crossed = epoch is None and (cache.is_foreign or cache.sid != self.sid)
        self.told.is_foreign = crossed
        await self._check_cache(cache, self.told, is_strict=not crossed, is_whole=epoch is not None)

    async def _check_cache(self, cache: Cache, told: Told, *, is_strict: bool, is_whole: bool) -> None:
        messages = dict(cache.messages)
        for uid in told.earlier:
            messages.pop(uid, None)
        if is_whole and is_strict:
            assert told.uidnext > max(cache.messages, default=0), "a UID that was told is not below UIDNEXT"
            assert told.modseq >= cache.modseq, f"HIGHESTMODSEQ {told.modseq}, after {cache.modseq} was told"
        selected = {slot.uid: slot.flags for slot in told.slots if slot.uid is not None}
        for uid, flags in selected.items():
            assert flags is not None
            messages[uid] = (flags, messages[uid][1] if uid in messages else None)
        modseq = told.stated_modseq
        await self.run(f"UID FETCH 1:* {LEARN}")
        if not is_strict:
            return
        for slot in told.slots:
            if slot.uid in messages and slot.modseq is not None:
                flags, size = messages.pop(slot.uid)
                assert size in {None, slot.size}, f"UID {slot.uid} is another message than in the cache"
                assert slot.modseq > modseq or flags == slot.flags, f"UID {slot.uid} has stale flags {sorted(flags)}"
            elif slot.uid is not None and slot.modseq is not None:
                newest = max(cache.messages, default=0)
                assert slot.uid > newest or slot.modseq > modseq, f"UID {slot.uid} is not in the cache"
        left = messages.keys() - told.vanished
        assert not left, f"the cache still has UIDs {sorted(left)}"

    async def _status(self, step: Step) -> None:
        facts, name = self.around.facts, folder(step.a)
        self.counted = (dict(facts.uidnext), dict(facts.modseq))
        items = "UIDVALIDITY UIDNEXT MESSAGES" + (" HIGHESTMODSEQ" if step.b % 2 else "")
        self.aware.condstore |= bool(step.b % 2)
        await self.run(f"STATUS {name} ({items})")

    async def _append(self, step: Step) -> None:
        body, flag = self.around.next_body(), FLAGS[step.b % len(FLAGS)]
        answer = await self.run(f"APPEND {folder(step.a)} ({flag})", body)
        if found := re.search(r"\[APPENDUID (\d+) (\d+)\]", answer):
            self.around.facts.is_message(Place(self.sid, int(found[1]), int(found[2])), len(body))

    async def _rename(self, step: Step) -> None:
        old, new = FOLDERS[(1 + step.a) % len(FOLDERS)], FOLDERS[1 + step.b % 3]
        await self._change_names(f"RENAME {old} {new}", old, new)

    async def _create(self, step: Step) -> None:
        await self._deselect("UNSELECT")
        name = FOLDERS[1 + step.a % 3]
        await self._change_names(f"{('DELETE', 'CREATE', 'CREATE')[step.b % 3]} {name}", name)

    async def _unselect(self, step: Step, told: Told) -> None:
        del told
        await self._deselect(("UNSELECT", "CLOSE")[step.a % 2])

    async def _noop(self, step: Step, _told: Told) -> None:
        await self.run(("NOOP", "CHECK", "CAPABILITY")[step.a % 3])

    async def _idle(self, _step: Step, _told: Told) -> None:
        await self.run("IDLE")

    def _some(self, step: Step, told: Told, *, by_uid: bool) -> tuple[list[Slot], str]:
        """Return some messages, and their numbers or UIDs, as `_by_uid` says."""
        known = [slot for slot in told.slots if slot.uid is not None or not by_uid]
        first = step.a % len(known) if known else 0
        some = known[first : first + 1 + step.b % 3]
        numbers = [slot.uid or 0 if by_uid else told.slots.index(slot) + 1 for slot in some]
        return some, printed(numbers)

    def _by_uid(self, drawn: int) -> bool:
        """Return True if the client names messages by UIDs: if it is drawn, or numbers change at any time."""
        return bool(drawn & 1) or (self.aware.notified is not None and self.aware.notified.is_at_once)

    async def _fetch(self, step: Step, told: Told) -> None:
        by_uid = self._by_uid(step.b)
        _, numbers = self._some(step, told, by_uid=by_uid)
        items = ("(FLAGS)", "(UID FLAGS)", "(BODY[]<0.1>)", LEARN)[step.a % 4]
        prefix = "UID " if by_uid else ""
        self.aware.condstore |= items == LEARN
        if step.b & 2:
            self.aware.condstore = True
            vanished = " VANISHED" if by_uid and self.aware.qresync else ""
            told.earlier = set()
            await self.run(f"{prefix}FETCH 1:* (UID FLAGS) (CHANGEDSINCE {max(1, told.modseq)}{vanished})")
        elif numbers:
            await self.run(f"{prefix}FETCH {numbers} {items}")

    async def _store(self, step: Step, told: Told) -> None:
        by_uid = self._by_uid(step.who)
        some, numbers = self._some(step, told, by_uid=by_uid)
        # Under NOTIFY, the client could not tell whether flags that it hears have come before or after its own.
        silent = ".SILENT" if step.a & 2 and self.aware.notified is None else ""
        action = ("+", "-", "", "+")[step.b % 4]
        flag = FLAGS[(step.a + step.b) % len(FLAGS)]
        if not some or told.read_only:
            return
        answer = await self.run(f"{'UID ' if by_uid else ''}STORE {numbers} {action}FLAGS{silent} ({flag})")
        if silent and " OK " in answer:
            self._expect(told, some, action, flag)

    @staticmethod
    def _expect(told: Told, some: list[Slot], action: str, flag: str) -> None:
        """Change the flags as the client has asked for, where the server has not told it otherwise."""
        for slot in some:
            if slot.flags is None or told.was_heard_flags(slot):
                continue
            kept = frozenset(one for one in slot.flags if one.lower() != flag.lower())
            spelled = next((one for one in told.flags if one.lower() == flag.lower()), flag)
            own = next((one for one in slot.flags if one.lower() == flag.lower()), spelled)
            added = frozenset({own})
            slot.flags = {"+": kept | added, "-": kept, "": added}[action]

    async def _compare(self, step: Step, told: Told) -> None:
        """Change a message if it is as the client knows it (RFC 7162 section 3.1.3)."""
        await self.learn(told)
        if not told.slots or told.read_only:
            return
        slot = told.slots[step.a % len(told.slots)]
        base, flags, epoch, began = slot.modseq, slot.flags, self.around.epoch(), self.around.facts.moment()
        assert base is not None
        assert flags is not None
        action, flag = ("-", "+")["k2" not in flags], "k2"
        number = slot.uid if step.b % 2 else told.slots.index(slot) + 1
        prefix = "UID " if step.b % 2 else ""
        self.aware.condstore = True
        if step.b & 4:  # the client pretends to know an earlier state
            answer = await self.run(f"{prefix}STORE {number} (UNCHANGEDSINCE {base - 1}) {action}FLAGS (k2)")
            assert " OK " not in answer or "[MODIFIED" in answer or slot not in told.slots or told.owe(slot)
            return
        answer = await self.run(f"{prefix}STORE {number} (UNCHANGEDSINCE {base}) {action}FLAGS (k2)")
        changed = " OK " in answer and "[MODIFIED" not in answer and slot in told.slots
        if not changed or slot.modseq is None or not told.was_heard(slot):
            return
        assert slot.modseq > base, f"{flag} was changed, and MODSEQ {base} was not"
        if epoch is not None and epoch == self.around.epoch():
            new = Compared(base, slot.modseq, began, self.around.facts.moment())
            self.around.facts.compare((epoch, told.uidvalidity, slot.uid or 0), new)

    async def _copy(self, step: Step, told: Told) -> None:
        by_uid, moving = self._by_uid(step.who), step.kind == "move"
        some, numbers = self._some(step, told, by_uid=by_uid)
        if not some or (moving and told.read_only):
            return
        verb, name = ("MOVE" if moving else "COPY"), folder(step.a + step.b)
        told.copied = ""
        answer = await self.run(f"{'UID ' if by_uid else ''}{verb} {numbers} {name}")
        if found := re.search(r"\[COPYUID (\d+) (\S+) (\S+)\]", told.copied + answer):
            sizes = {slot.uid: slot.size for slot in some}
            for source, uid in zip(numbers_of(found[2]), numbers_of(found[3]), strict=True):
                self.around.facts.is_message(Place(self.sid, int(found[1]), uid), sizes.get(source))

    _move = _copy

    async def _expunge(self, step: Step, told: Told) -> None:
        if told.read_only:
            return
        if step.b & 4 and self.aware.notified is None:
            some, numbers = self._some(step, told, by_uid=False)
            if some and " OK " in await self.run(f"STORE {numbers} +FLAGS.SILENT (\\Deleted)"):
                self._expect(told, some, "+", "\\Deleted")
        deleted = [slot.uid for slot in told.slots if slot.uid is not None and "\\Deleted" in (slot.flags or ())]
        if step.a % 2 == 0:
            await self.run("EXPUNGE")
        elif deleted:
            await self.run(f"UID EXPUNGE {printed(uid for uid in deleted if uid)}")

    # ---- the end

    async def check_equal(self, node: Node) -> None:
        """Check that the client knows just what its node shows, now that nothing changes any more."""
        await self.check_notified(node)
        if self.told is None:
            return
        await self.run("NOOP")
        assert self.told is not None
        told = self.told
        await self.learn(told)
        folders = await node.mail.folders(USER)
        [told.name] = [one.name for one in folders if f"F{one.mailbox_id.hex()}" == told.mailbox_id]
        view = await node.view(told.name)
        assert [slot.uid for slot in told.slots] == list(view.messages), "other messages than the node shows"
        for slot, message in zip(told.slots, view.messages.values(), strict=True):
            shown = {flag.lower() for flag in message.flags}
            assert {flag.lower() for flag in slot.flags or ()} == shown, f"flags of {slot} are {shown}"
            assert slot.modseq == message.modseq, f"{slot} has MODSEQ {message.modseq}"
        assert not self.aware.condstore or told.modseq == max(1, view.highestmodseq), "HIGHESTMODSEQ is not told"
        for tag, context in told.contexts.items():
            expected = context.expected(told.slots)
            same = context.results == expected if context.is_sorted else set(context.results) == set(expected)
            assert same or context.is_lost, f"{tag} has {context.results} and not {expected}"
