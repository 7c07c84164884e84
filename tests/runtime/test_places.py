"""Places against a model that holds all connections in one list."""

from __future__ import annotations

from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass

import trio
from hypothesis import given
from hypothesis import strategies as st

from replicator.runtime.places import Limit, Place, PlaceLimits, Places

LIMITS = PlaceLimits(
    total=Limit(6, "total"),
    strangers=Limit(4, "strangers"),
    per_address=Limit(5, "per_address"),
    strangers_per_address=Limit(3, "strangers_per_address"),
    per_user=Limit(2, "per_user"),
)
ADDRESSES = ("192.0.2.1", "192.0.2.2", "192.0.2.3")

step = st.one_of(
    st.tuples(st.just("admit"), st.sampled_from(ADDRESSES)),
    st.tuples(st.sampled_from(["log_in", "begin", "end"]), st.integers(0, 20)),
)


@dataclass(eq=False)
class Held:
    """An open connection. `busy`: its `Place.busy` block; `user`: logged in."""

    address: str
    place: Place
    busy: AbstractContextManager[None] | None = None
    user: str | None = None

    @property
    def is_stranger(self) -> bool:
        return self.busy is None and self.user is None


def over(limit: Limit | None, count: int) -> bool:
    assert limit is not None
    return count >= limit.most


class Model:
    """All connections in the order in which they became strangers."""

    def __init__(self) -> None:
        self.held: list[Held] = []

    def strangers(self, address: str | None = None) -> list[Held]:
        return [one for one in self.held if one.is_stranger and address in {None, one.address}]

    def of(self, address: str) -> list[Held]:
        return [one for one in self.held if one.address == address]

    def expected(self, address: str) -> tuple[bool, set[Held]]:
        """Return whether a newcomer gets a place, and who loses one."""
        same, others = self.strangers(address), self.strangers()
        for limit, count, candidates in (
            (LIMITS.per_address, len(self.of(address)), same),
            (LIMITS.strangers_per_address, len(same), same),
            (LIMITS.strangers, len(others), others),
            (LIMITS.total, len(self.held), others),
        ):
            if over(limit, count):
                return bool(candidates), set(candidates[:1])
        return True, set()


@given(st.lists(step, max_size=60))
def test_places_are_given_and_taken_as_in_the_model(steps: list[tuple[str, object]]) -> None:
    async def run() -> None:
        refused: list[str] = []
        places, model = Places(LIMITS, refused.append), Model()
        async with AsyncExitStack() as stack:
            for what, argument in steps:
                if isinstance(argument, str):
                    await admit(places, model, argument, stack)
                elif model.held:
                    act(
                        places,
                        model,
                        model.held[argument % len(model.held)] if isinstance(argument, int) else None,
                        what,
                    )
                assert places.counts == (
                    len(model.held),
                    len(model.strangers()),
                    sum(one.user is not None for one in model.held),
                )
                assert not any(one.place.dropped for one in model.held)

    trio.run(run)


async def admit(places: Places, model: Model, address: str, stack: AsyncExitStack) -> None:
    served, dropped = model.expected(address)
    admission = places.admit(address)
    place = await admission.__aenter__()
    stack.push_async_callback(admission.__aexit__, None, None, None)
    assert (place is not None) == served
    assert {one for one in model.held if one.place.dropped} == dropped
    model.held = [one for one in model.held if one not in dropped]
    if place is not None:
        model.held.append(Held(address, place))


def act(places: Places, model: Model, one: Held | None, what: str) -> None:
    assert one is not None
    if what == "log_in" and one.user is None:
        has_room = sum(other.user == "alice" for other in model.held) < 2
        assert places.give(one.place, "alice") == has_room
        if has_room:
            one.user = "alice"
    elif what == "begin" and one.busy is None:
        one.busy = one.place.busy()
        one.busy.__enter__()
    elif what == "end" and one.busy is not None:
        # Unless it has logged in, it becomes a stranger again, the youngest, for whom an older one may be dropped.
        same, others = model.strangers(one.address), model.strangers()
        dropped = same[:1] if len(same) >= 3 else others[:1] if len(others) >= 4 else []
        dropped = dropped if one.user is None else []
        one.busy.__exit__(None, None, None)
        one.busy = None
        assert [other for other in model.held if other.place.dropped] == dropped
        model.held = [other for other in model.held if other is not one and other not in dropped] + [one]
