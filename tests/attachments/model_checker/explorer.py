"""A model checker: it tries every order of the actors' steps, and every point at which an actor can die.

Actors are the generators that the node runs. A generator cannot be copied, so a state holds the answers that each actor
has received. To find an actor's next step, the checker starts a new generator and gives it these answers, once for all
states. It continues from each state only once, so the search is exhaustive and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from replicator.store.attachments import linking, names
from replicator.store.attachments.files import Files, MissingError, StepOutcome
from replicator.store.attachments.steps import Algorithm, Answer, Pause, Step, SyncDirectory, run
from tests.attachments.file_systems.model import ModelFiles
from tests.attachments.model_checker import states
from tests.attachments.model_checker.states import State

STEPS_MAX = 60
"""Highest number of steps of one actor, whatever the others do."""


class ViolationError(AssertionError):
    """A broken invariant, with the steps that led to it."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The mark from which on an actor relies on its reference at `place`, or on none. It takes no step."""

    place: str | None

    def on(self, files: Files) -> StepOutcome:
        del files
        return StepOutcome.DONE


class Actor(NamedTuple):
    """A process that runs one algorithm. `start` makes a new generator of its steps."""

    name: str
    holder: str
    start: Callable[[], Algorithm[None]]


class Standing(NamedTuple):
    """The position of an actor: its answers so far, its next step (None at the end), and the place it relies on."""

    answers: tuple[Answer, ...]
    step: Step | None
    held: str | None


Tree = frozenset[tuple[str, bytes | None]]
Shown = tuple[State, tuple[frozenset[State], ...]]
"""The state of the H-name, and for each actor the possible states of its S-name."""


class World(NamedTuple):
    """A state of the whole system. `positions` has each actor's index in `Explorer._standings`; None if it died."""

    files: ModelFiles
    tree: Tree
    positions: tuple[int | None, ...]
    trace: tuple[object, ...] | None  # (before, what happened), back to the beginning

    @property
    def key(self) -> object:
        return self.tree, self.positions


@dataclass
class Explorer:
    """A search through all states that the actors can reach.

    `place` is the H-name, `content` what each holder must be able to read, `deaths` the number of actors that may die.
    With `judges_states`, the transitions of names must be in the tables of `states`.
    """

    actors: Sequence[Actor]
    place: str
    content: bytes
    deaths: int = 3
    judges_states: bool = True
    _standings: list[Standing] = field(default_factory=list)
    _after: dict[tuple[int, Answer], int] = field(default_factory=dict)
    _shown: dict[Tree, Shown] = field(default_factory=dict)

    def explore(self, files: ModelFiles) -> int:
        """Return the number of states. May raise ViolationError."""
        positions = tuple(self._add_standing(number, ()) for number in range(len(self.actors)))
        first = World(files, frozenset(files.tree.items()), positions, None)
        seen, waiting = {first.key}, [first]
        self._check(first)
        while waiting:
            world = waiting.pop()
            followers = self._followers(world)
            if not followers:
                self._check_end(world)
            for follower in followers:
                if self.judges_states:
                    self._check_transition(world, follower)
                if follower.key not in seen:
                    seen.add(follower.key)
                    self._check(follower)
                    waiting.append(follower)
        return len(seen)

    # ---- steps

    def _followers(self, world: World) -> list[World]:
        found: list[World] = []
        may_die = world.positions.count(None) < self.deaths
        for number, position in enumerate(world.positions):
            if position is None or (step := self._standings[position].step) is None:
                continue
            name = self.actors[number].name
            files = world.files.copy()
            answer = step.on(files)
            after = _with(world.positions, number, self._position_after(number, position, answer))
            found.append(World(files, frozenset(files.tree.items()), after, (world.trace, name, step, answer)))
            if may_die and self._standings[position].answers:
                after = _with(world.positions, number, None)
                found.append(World(world.files, world.tree, after, (world.trace, name, "dies")))
        return found

    def _position_after(self, number: int, position: int, answer: Answer) -> int:
        known = self._after.get((position, answer))
        if known is None:
            known = self._add_standing(number, (*self._standings[position].answers, answer))
            self._after[position, answer] = known
        return known

    def _add_standing(self, number: int, answers: tuple[Answer, ...]) -> int:
        if len(answers) > STEPS_MAX:
            raise ViolationError(f"{self.actors[number].name} takes more than {STEPS_MAX} steps: {answers}")
        self._standings.append(_replayed(self.actors[number], answers))
        return len(self._standings) - 1

    # ---- invariants

    def _held(self, world: World) -> dict[str, str]:
        """Return the holders that actors rely on, with their places."""
        return {
            self.actors[number].holder: place
            for number, position in enumerate(world.positions)
            if position is not None and (place := self._standings[position].held) is not None
        }

    def _check(self, world: World, files: ModelFiles | None = None) -> None:
        files = files or world.files
        for holder, place in self._held(world).items():
            if f"{names.holders(place)}/{holder}" not in files.tree:
                raise ViolationError(f"{holder} has lost its hold on {place}\n{format_trace(world)}")
            content = linking.content_in(listing(files, place) or ())
            if content is None or files.tree[f"{place}/{content}"] != self.content:
                raise ViolationError(
                    f"the content that {holder} holds at {place} cannot be read\n{format_trace(world)}"
                )

    def _check_transition(self, before: World, after: World) -> None:
        if before.tree == after.tree:
            return
        (h_before, all_before), (h_after, all_after) = self._shown_by(before), self._shown_by(after)
        if not states.may_follow(states.H_TRANSITIONS, h_before, h_after):
            raise ViolationError(f"the H-name is {h_before}, then {h_after}\n{format_trace(after)}")
        for actor, s_before, s_after in zip(self.actors, all_before, all_after, strict=True):
            if not any(states.may_follow(states.S_TRANSITIONS, one, two) for one in s_before for two in s_after):
                raise ViolationError(f"the S-name of {actor.name} is {s_before}, then {s_after}\n{format_trace(after)}")

    def _shown_by(self, world: World) -> Shown:
        shown = self._shown.get(world.tree)
        if shown is None:
            of_s = tuple(self._states_of_s(world.files, actor.holder) for actor in self.actors)
            shown = self._shown[world.tree] = states.state_of_h(listing(world.files, self.place)), of_s
        return shown

    def _states_of_s(self, files: ModelFiles, holder: str) -> frozenset[State]:
        place = names.s_name(holder)
        is_whole = files.tree.get(f"{place}/{names.content(holder)}") == self.content
        return states.states_of_s(listing(files, place), is_whole=is_whole)

    def _check_end(self, world: World) -> None:
        """Check that only held attachments are left: at once if no actor died, otherwise after a sweep."""
        files, held = world.files.copy(), self._held(world)
        if None in world.positions:
            self._sweep(files, held)
            self._check(world, files)
        left = {name for name in files.tree if name.count("/") >= 2}
        if any(not any(name == place or name.startswith(f"{place}/") for place in held.values()) for name in left):
            raise ViolationError(f"left in the end: {sorted(left)}\n{format_trace(world)}")

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


def format_trace(world: World) -> str:
    lines: list[str] = []
    trace = world.trace
    while trace is not None:
        before, *what = trace
        lines.append("  ".join(map(str, what)))
        assert before is None or isinstance(before, tuple)
        trace = before
    return "\n".join(reversed(lines))


def _replayed(actor: Actor, answers: Sequence[Answer]) -> Standing:
    held: str | None = None
    steps, told = actor.start(), iter(answers)
    try:
        step = next(steps)
        while True:
            if isinstance(step, Hold):
                held = step.place
                step = steps.send(StepOutcome.DONE)
            elif isinstance(step, SyncDirectory | Pause):  # no other actor sees it, so its moment does not matter
                step = steps.send(StepOutcome.DONE)
            elif (answer := next(told, None)) is not None:
                step = steps.send(answer)
            else:
                return Standing(tuple(answers), step, held)
    except StopIteration:
        return Standing(tuple(answers), None, held)


def _with(positions: tuple[int | None, ...], number: int, position: int | None) -> tuple[int | None, ...]:
    return (*positions[:number], position, *positions[number + 1 :])


def _no_sleep(_seconds: float) -> None:
    pass
