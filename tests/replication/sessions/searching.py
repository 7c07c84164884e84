"""Searches of one client, held against what it finds itself among the messages that it knows."""

from __future__ import annotations

import re

from tests.replication.sessions.conversation import Conversation, Step
from tests.replication.sessions.searches import CRITERIA, Context, Criterion, Slot, numbers_of
from tests.replication.sessions.told import NUMBERS, Told, may_expunge


class Searcher(Conversation):
    """A client that searches and sorts."""

    async def _search(self, step: Step, told: Told) -> None:
        """Search, and compare the result with what the client finds itself."""
        await self.learn(told)
        criterion, by_uid, form = CRITERIA[step.a % len(CRITERIA)], step.b % 2 == 1, step.b // 2
        before = [(slot, slot.flags) for slot in told.slots]
        prefix = "UID " if by_uid else ""
        returns = ("", "RETURN (ALL COUNT) ", "RETURN (SAVE ALL) ", "RETURN (MIN MAX COUNT) ")[form % 4]
        numbered = NUMBERS.lstrip() if step.who & 1 else ""
        answer = await self.run(f"{prefix}SEARCH {returns}{numbered}{criterion.text}")
        if " OK " not in answer:
            return
        [line] = told.results
        found = {match[1]: match[2] for match in re.finditer(r"(MIN|MAX|ALL|COUNT) ([\d:,]+)", line)}
        if form % 4 == 3:
            numbers = [int(found[name]) for name in ("MIN", "MAX") if name in found]
            self._check_found(told, before, criterion, numbers, by_uid=by_uid, whole=False)
            return
        numbers = numbers_of(found.get("ALL", "")) if returns else [int(word) for word in line.split()[2:]]
        assert "COUNT" not in found or int(found["COUNT"]) == len(numbers)
        slots = self._check_found(told, before, criterion, numbers, by_uid=by_uid, whole=True)
        if form % 4 == 2:
            told.saved = slots
            await self._use_saved(told)

    async def _use_saved(self, told: Told) -> None:
        """Check that `$` means what was found (RFC 5182)."""
        was = list(told.slots)
        answer = await self.run("SEARCH $")
        numbers = [int(word) for word in told.results[0].split()[2:]]
        slots = [was[number - 1] for number in numbers]
        assert " OK " in answer
        assert all(slot in told.saved for slot in slots), "$ means messages that were not found"
        told.owed += [slot for slot in told.saved if slot in told.slots and slot not in slots]

    def _check_found(
        self,
        told: Told,
        before: list[tuple[Slot, frozenset[str] | None]],
        criterion: Criterion,
        numbers: list[int],
        *,
        by_uid: bool,
        whole: bool,
    ) -> list[Slot]:
        """Check a result, and return its messages. Flags that were told meanwhile may have counted or not."""
        uids = {slot.uid: slot for slot, _ in before}
        assert by_uid or all(1 <= number <= len(before) for number in numbers), "a number beyond EXISTS"
        assert not by_uid or all(number in uids for number in numbers), "a UID that the client was not told of"
        found = [uids[number] if by_uid else before[number - 1][0] for number in numbers]
        for slot, flags in before:
            assert flags is not None
            assert slot.flags is not None
            assert slot.size is not None
            matched = {criterion.matches(flags, slot.size), criterion.matches(slot.flags, slot.size)}
            if slot in found:
                assert True in matched, f"{criterion.text} has found {slot}"
            elif whole and matched == {True} and slot in told.slots:
                told.owed.append(slot)
        if may_expunge(told.command):
            assert not told.owed, f"{told.command} left out {told.owed}"
        return found

    async def _sort(self, step: Step, told: Told) -> None:
        """Sort by size, and compare the order."""
        await self.learn(told)
        criterion, by_uid = CRITERIA[step.a % len(CRITERIA)], step.b % 2 == 1
        before = [(slot, slot.flags) for slot in told.slots]
        answer = await self.run(f"{'UID ' if by_uid else ''}SORT (REVERSE SIZE) UTF-8 {criterion.text}")
        if " OK " not in answer:
            return
        numbers = [int(word) for word in told.results[0].split()[2:]]
        found = self._check_found(told, before, criterion, numbers, by_uid=by_uid, whole=True)
        sizes = [slot.size or 0 for slot in found]
        assert sizes == sorted(sizes, reverse=True), told.results

    async def _context(self, step: Step, told: Told) -> None:
        """Ask for a search that is kept up to date, or end one."""
        if step.b >= 6 and told.contexts:
            tag = next(iter(told.contexts))
            await self.run(f'CANCELUPDATE "{tag}"')
            told.contexts.pop(tag, None)
            return
        await self.learn(told)
        criterion, by_uid, is_sorted = CRITERIA[step.a % len(CRITERIA)], bool(step.b & 1), bool(step.b & 2)
        tag = f"u{self.number}x{self.commands}"
        told.begin_context(tag, Context(criterion, by_uid=by_uid, is_sorted=is_sorted))
        what = f"SORT RETURN (UPDATE ALL) (SIZE) UTF-8 {criterion.text}"
        if not is_sorted:
            what = f"SEARCH RETURN (UPDATE ALL) {criterion.text}"
        await self.run(f"{'UID ' if by_uid else ''}{what}", tag=tag)
