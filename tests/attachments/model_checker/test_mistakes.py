"""The model checker finds the mistakes that are easily made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replicator.store.attachments import linking, names
from replicator.store.attachments.files import StepOutcome
from replicator.store.attachments.steps import (
    Algorithm,
    CreateFile,
    ListDirectory,
    MakeDirectory,
    RemoveDirectory,
    RemoveFile,
    Rename,
)
from tests.attachments.helpers import PLACE, TEXT
from tests.attachments.model_checker.actors import (
    DEAD,
    EMPTY,
    HELD,
    NOTHING,
    UNHELD,
    Scenario,
    finish,
    heal,
    link,
    store,
    unlink,
)
from tests.attachments.model_checker.explorer import Actor, Explorer

HOLDERS = names.holders(PLACE)


def clear_by_what_is_there_now(place: str) -> Algorithm[None]:
    """List and remove until it is gone: also what was renamed onto the directory when it was empty."""
    while True:
        found = yield ListDirectory(place)
        if isinstance(found, StepOutcome):
            return
        for name in sorted(found - {names.HOLDERS}):
            yield RemoveFile(f"{place}/{name}")
        if names.HOLDERS in found:
            held = yield ListDirectory(names.holders(place))
            for name in sorted(held) if not isinstance(held, StepOutcome) else ():
                yield RemoveFile(f"{place}/holders/{name}")
            yield RemoveDirectory(names.holders(place))
        yield RemoveDirectory(place)


def clear_without_looking_for_holders(place: str) -> Algorithm[None]:
    found = yield ListDirectory(place)
    for name in sorted(found) if not isinstance(found, StepOutcome) else ():
        if names.is_ours(name):
            yield RemoveFile(f"{place}/{name}")
    yield RemoveDirectory(place)


def clear_and_leave_the_directory(place: str) -> Algorithm[None]:
    found = yield ListDirectory(place)
    if not isinstance(found, StepOutcome) and names.HOLDERS not in found:
        for name in sorted(found):
            yield RemoveFile(f"{place}/{name}")


def content_of_one_name(_holder: str) -> str:
    return f"content.{names.new_holder(f'{99:032x}', 0)}"  # that of `HELD`


def link_whatever_is_there(place: str, holder: str) -> Algorithm[bool]:
    yield MakeDirectory(names.holders(place))
    return (yield CreateFile(f"{names.holders(place)}/{holder}")) is not StepOutcome.MISSING


def publish_and_believe(built: str, place: str, _holder: str) -> Algorithm[bool]:
    yield Rename(built, place)
    return True


def publish_once(built: str, place: str, holder: str) -> Algorithm[bool]:
    """Does not try again after what was in deletion, and does not keep what was built."""
    if (yield Rename(built, place)) is not StepOutcome.DONE:
        yield from linking.link(place, holder)
        yield from linking.drop(built)
    return True


def unlink_content_first(place: str, holder: str) -> Algorithm[None]:
    yield RemoveFile(f"{names.holders(place)}/{holder}")
    held = yield ListDirectory(names.holders(place))
    if held == frozenset():
        found = yield ListDirectory(place)
        assert not isinstance(found, StepOutcome)
        yield RemoveFile(f"{place}/{linking.content_in(found)}")
        yield from linking.remove_unheld(place)


def finish_by_holders_anew(place: str) -> Algorithm[None]:
    """Make it complete again, and let go of it like anyone else."""
    yield MakeDirectory(names.holders(place))
    yield RemoveDirectory(names.holders(place))
    yield from linking.clear(place)


def replace_what_is_there(place: str, replacement: str) -> Algorithm[bool]:
    """Does not look whether it was removed meanwhile."""
    found = yield ListDirectory(place)
    content = None if isinstance(found, StepOutcome) else linking.content_in(found)
    yield Rename(f"{place}/new.{replacement}", f"{place}/{content or names.content(replacement)}")
    return True


MISTAKES: dict[str, tuple[str, Callable[..., object], Scenario]] = {
    "list and remove": ("clear", clear_by_what_is_there_now, (HELD, [unlink(1), store(2)])),
    "list and remove, by those who help": ("clear", clear_by_what_is_there_now, (EMPTY, [finish(1), store(2)])),
    "removal without a look": ("clear", clear_without_looking_for_holders, (HELD, [unlink(1), store(2), link(3)])),
    "an empty directory is left": ("clear", clear_and_leave_the_directory, (HELD, [unlink(1)])),
    "content of one name": ("content", content_of_one_name, (HELD, [unlink(1), store(2)])),
    "holders/ made by who links": ("link", link_whatever_is_there, (HELD, [unlink(1), link(2)])),
    "a lost rename is believed": ("publish", publish_and_believe, (NOTHING, [store(1), store(2)])),
    "one try": ("publish", publish_once, (HELD, [unlink(1), store(2)])),
    "content goes first": ("unlink", unlink_content_first, (HELD, [unlink(1), link(2)])),
    "holders/ made by who finishes": (
        "remove_unheld",
        finish_by_holders_anew,
        (UNHELD, [finish(1), finish(2), link(3)]),
    ),
    "replaced without a look": ("put_in_place", replace_what_is_there, (HELD, [unlink(1), heal(2)])),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    function, mistake, (files, actors) = MISTAKES[name]
    found = Explorer(actors, PLACE, TEXT, deaths=1)
    found.explore(files)
    monkeypatch.setattr(names if function == "content" else linking, function, mistake)
    with pytest.raises(AssertionError, match=r"lost its hold|cannot be read|left in the end|then"):
        Explorer(actors, PLACE, TEXT, deaths=1).explore(files)


# ---- why a removal is not finished by taking it over


def removed_aside(number: int, counter: int) -> Algorithm[None]:
    """Whoever removed `holders/` renames the attachment to a name of its own, and removes it there."""
    if (yield RemoveDirectory(HOLDERS)) is StepOutcome.DONE:
        aside = names.s_name(names.new_holder(f"{number:032x}", counter << 16))
        yield Rename(PLACE, aside)
        yield from linking.drop(aside)


def take_over(number: int) -> Actor:
    """After a grace time: make `holders/` again, hold it, and let go of it like anyone else."""
    holder = names.new_holder(f"{number:032x}", 0)

    def start() -> Algorithm[None]:
        yield MakeDirectory(HOLDERS)
        if (yield CreateFile(f"{HOLDERS}/{holder}")) is StepOutcome.DONE:
            yield RemoveFile(f"{HOLDERS}/{holder}")
            yield from removed_aside(number, 1)

    return Actor(f"take over {number}", holder, start)


def test_two_that_take_over_a_removal_lose_what_a_third_one_links() -> None:
    actors = [take_over(1), take_over(2), link(3)]
    with pytest.raises(AssertionError, match="lost its hold"):
        Explorer(actors, PLACE, TEXT, deaths=0, judges_states=False).explore(DEAD)
    Explorer(actors[::2], PLACE, TEXT, deaths=0, judges_states=False).explore(DEAD)  # one alone does no harm
