"""A model checker: every order in which actors can take their steps, and every place where one of them can die.

Actors are the generators that the node runs. A generator cannot be copied, so a state has the answers that each actor
got, which is where it is: its next step is found by telling them to a new one, once for all states. States that were
seen are not gone on with, so that the search is exhaustive and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from replicator.store.attachments import linking, names, states
from replicator.store.attachments.files import Files, MissingError, Outcome
from replicator.store.attachments.states import State
from replicator.store.attachments.steps import Algorithm, Answer, Pause, Step, SyncDirectory, run
from tests.attachments.model import ModelFiles

STEPS_MAX = 60
"""Of one actor, whatever the others do."""


class ViolationError(AssertionError):
    """What must never be, with the way that led there."""


@dataclass(frozen=True, slots=True)
class Hold:
    """From here on the actor relies on its reference; None: it does not any more. Takes no time."""

    place: str | None

    def on(self, files: Files) -> Outcome:
        del files
        return Outcome.DONE


class Actor(NamedTuple):
    """`start` makes its steps anew."""

    name: str
    holder: str
    start: Callable[[], Algorithm[None]]


class Standing(NamedTuple):
    """Where an actor is: its next step, None at its end; and the place that it relies on."""

    step: Step | None
    held: str | None


Position = tuple[Answer, ...] | None
"""Answers so far; None: it died."""


class World(NamedTuple):
    files: ModelFiles
    positions: tuple[Position, ...]
    trace: tuple[object, ...] | None  # (before, what happened), back to the beginning

    @property
    def key(self) -> object:
        return frozenset(self.files.tree.items()), self.positions


@dataclass
class Explorer:
    """`place`: the H-name. `text`: what can be read by whoever holds it. `deaths`: how many of the actors may die.

    `judges_states`: also by the table of states.
    """

    actors: Sequence[Actor]
    place: str
    text: bytes
    deaths: int = 3
    judges_states: bool = True
    limit: int = 2_000_000
    states_seen: int = 0
    _known: dict[tuple[int, tuple[Answer, ...]], Standing] = field(default_factory=dict)

    def explore(self, files: ModelFiles) -> int:
        """How many states there are. Raises ViolationError."""
        first = World(files, ((),) * len(self.actors), None)
        seen, waiting = {first.key}, [first]
        self._check(first)
        while waiting:
            world = waiting.pop()
            followers = self._followers(world)
            if not any(position is not None and self._standing(n, position).step for n, position in self._all(world)):
                self._check_end(world)
            for follower in followers:
                if follower.key not in seen:
                    seen.add(follower.key)
                    self._check(follower)
                    if self.judges_states:
                        self._check_transition(world, follower)
                    waiting.append(follower)
            if len(seen) > self.limit:
                raise AssertionError(f"more than {self.limit} states")
        self.states_seen = len(seen)
        return len(seen)

    # ---- moving on

    def _all(self, world: World) -> list[tuple[int, Position]]:
        return list(enumerate(world.positions))

    def _followers(self, world: World) -> list[World]:
        found: list[World] = []
        may_die = sum(position is None for position in world.positions) < self.deaths
        for number, position in self._all(world):
            if position is None or (step := self._standing(number, position).step) is None:
                continue
            files = world.files.copy()
            answer = step.on(files)
            trace = (world.trace, self.actors[number].name, step, answer)
            found.append(World(files, _with(world.positions, number, (*position, answer)), trace))
            if may_die and position:
                died = (world.trace, self.actors[number].name, "dies")
                found.append(World(world.files, _with(world.positions, number, None), died))
        return found

    def _standing(self, number: int, position: tuple[Answer, ...]) -> Standing:
        known = self._known.get((number, position))
        if known is None:
            known = self._known[number, position] = self._replayed(number, position)
        return known

    def _replayed(self, number: int, position: tuple[Answer, ...]) -> Standing:
        if len(position) > STEPS_MAX:
            raise ViolationError(f"{self.actors[number].name} takes more than {STEPS_MAX} steps: {position}")
        held: str | None = None
        steps = self.actors[number].start()
        answers = iter(position)
        try:
            step = next(steps)
            while True:
                if isinstance(step, Hold):
                    held = step.place
                    step = steps.send(Outcome.DONE)
                elif isinstance(step, SyncDirectory | Pause):  # nobody else sees it, so its moment makes no difference
                    step = steps.send(Outcome.DONE)
                elif (answer := next(answers, None)) is not None:
                    step = steps.send(answer)
                else:
                    return Standing(step, held)
        except StopIteration:
            return Standing(None, held)

    # ---- what must hold

    def _held(self, world: World) -> dict[str, str]:
        """Holders that are relied on, and the places."""
        return {
            self.actors[number].holder: place
            for number, position in self._all(world)
            if position is not None and (place := self._standing(number, position).held) is not None
        }

    def _check(self, world: World, files: ModelFiles | None = None) -> None:
        files = files or world.files
        for holder, place in self._held(world).items():
            if f"{names.holders(place)}/{holder}" not in files.tree:
                raise ViolationError(f"{holder} has lost its hold on {place}\n{story(world)}")
            content = linking.content_in(listing(files, place) or ())
            if content is None or files.tree[f"{place}/{content}"] != self.text:
                raise ViolationError(f"what {holder} holds at {place} cannot be read\n{story(world)}")

    def _check_transition(self, before: World, after: World) -> None:
        h_before, h_after = (states.state_of_h(listing(world.files, self.place)) for world in (before, after))
        if not states.may_follow(states.H_TRANSITIONS, h_before, h_after):
            raise ViolationError(f"the H-name is {h_before}, then {h_after}\n{story(after)}")
        for actor in self.actors:
            s_before, s_after = (self._states_of_s(world.files, actor.holder) for world in (before, after))
            if not any(states.may_follow(states.S_TRANSITIONS, one, two) for one in s_before for two in s_after):
                raise ViolationError(f"the S-name of {actor.name} is {s_before}, then {s_after}\n{story(after)}")

    def _states_of_s(self, files: ModelFiles, holder: str) -> frozenset[State]:
        place = names.s_name(holder)
        is_whole = files.tree.get(f"{place}/{names.content(holder)}") == self.text
        return states.states_of_s(listing(files, place), is_whole=is_whole)

    def _check_end(self, world: World) -> None:
        """If nobody died, nothing is left but what is held; else that is so after a sweep."""
        files, held = world.files.copy(), self._held(world)
        if None in world.positions:
            self._sweep(files, held)
            self._check(world, files)
        left = {name for name in files.tree if name.count("/") >= 2}
        if any(not any(name == place or name.startswith(f"{place}/") for place in held.values()) for name in left):
            raise ViolationError(f"left in the end: {sorted(left)}\n{story(world)}")

    def _sweep(self, files: ModelFiles, held: Mapping[str, str]) -> None:
        for holder in sorted(listing(files, names.holders(self.place)) or ()):
            if holder not in held:
                run(files, linking.unlink(self.place, holder), _no_sleep)
        for leaf in sorted(listing(files, self.place) or ()):
            if leaf.startswith(names.NEW_PREFIX):
                files.remove_file(f"{self.place}/{leaf}")
        run(files, linking.remove_unheld(self.place), _no_sleep)
        for actor in self.actors:
            if held.get(actor.holder) != (place := names.s_name(actor.holder)):
                run(files, linking.drop(place), _no_sleep)


def listing(files: ModelFiles, place: str) -> frozenset[str] | None:
    try:
        return frozenset(files.names(place))
    except MissingError:
        return None


def story(world: World) -> str:
    lines: list[str] = []
    trace = world.trace
    while trace is not None:
        before, *what = trace
        lines.append("  ".join(map(str, what)))
        assert before is None or isinstance(before, tuple)
        trace = before
    return "\n".join(reversed(lines))


def _with(positions: tuple[Position, ...], number: int, position: Position) -> tuple[Position, ...]:
    return (*positions[:number], position, *positions[number + 1 :])


def _no_sleep(_seconds: float) -> None:
    pass
