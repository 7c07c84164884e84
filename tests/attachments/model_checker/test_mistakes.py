"""The model checker finds mistakes that are easily made in the algorithms."""

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
from tests.attachments.helpers import CONTENT, PLACE
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


def clear_in_a_loop(place: str) -> Algorithm[None]:
    """List and remove in a loop, and so also remove an attachment that was renamed onto the empty directory."""
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


def clear_without_removing_the_directory(place: str) -> Algorithm[None]:
    found = yield ListDirectory(place)
    if not isinstance(found, StepOutcome) and names.HOLDERS not in found:
        for name in sorted(found):
            yield RemoveFile(f"{place}/{name}")


def fixed_content_name(_holder: str) -> str:
    return f"content.{names.new_holder(f'{99:032x}', 0)}"  # the name in `HELD`


def link_without_checking(place: str, holder: str) -> Algorithm[bool]:
    yield MakeDirectory(names.holders(place))
    return (yield CreateFile(f"{names.holders(place)}/{holder}")) is not StepOutcome.MISSING


def publish_without_checking(built: str, place: str, _holder: str) -> Algorithm[bool]:
    yield Rename(built, place)
    return True


def publish_once(built: str, place: str, holder: str) -> Algorithm[bool]:
    """Do not retry after a removal in progress, and drop the new attachment."""
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


def finish_with_new_holders(place: str) -> Algorithm[None]:
    """Make `holders/` again, and then remove the attachment like its last holder."""
    yield MakeDirectory(names.holders(place))
    yield RemoveDirectory(names.holders(place))
    yield from linking.clear(place)


def replace_without_checking(place: str, replacement: str) -> Algorithm[bool]:
    """Do not check if the attachment was removed meanwhile."""
    found = yield ListDirectory(place)
    content = None if isinstance(found, StepOutcome) else linking.content_in(found)
    yield Rename(f"{place}/new.{replacement}", f"{place}/{content or names.content(replacement)}")
    return True


MISTAKES: dict[str, tuple[str, Callable[..., object], Scenario]] = {
    "list and remove": ("clear", clear_in_a_loop, (HELD, [unlink(1), store(2)])),
    "list and remove, in a sweep": ("clear", clear_in_a_loop, (EMPTY, [finish(1), store(2)])),
    "removal without a look at holders": (
        "clear",
        clear_without_looking_for_holders,
        (HELD, [unlink(1), store(2), link(3)]),
    ),
    "an empty directory is left": ("clear", clear_without_removing_the_directory, (HELD, [unlink(1)])),
    "content of one name": ("content", fixed_content_name, (HELD, [unlink(1), store(2)])),
    "holders/ made by a link": ("link", link_without_checking, (HELD, [unlink(1), link(2)])),
    "a refused rename taken for success": ("publish", publish_without_checking, (NOTHING, [store(1), store(2)])),
    "one try only": ("publish", publish_once, (HELD, [unlink(1), store(2)])),
    "content removed first": ("unlink", unlink_content_first, (HELD, [unlink(1), link(2)])),
    "holders/ made by a sweep": (
        "remove_unheld",
        finish_with_new_holders,
        (UNHELD, [finish(1), finish(2), link(3)]),
    ),
    "replaced without a check": ("put_in_place", replace_without_checking, (HELD, [unlink(1), heal(2)])),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_model_checker_finds_each_mistake(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    function, mistake, (files, actors) = MISTAKES[name]
    found = Explorer(actors, PLACE, CONTENT, deaths=1)
    found.explore(files)
    monkeypatch.setattr(names if function == "content" else linking, function, mistake)
    with pytest.raises(AssertionError, match=r"lost its hold|cannot be read|left in the end|then"):
        Explorer(actors, PLACE, CONTENT, deaths=1).explore(files)


# ---- why no node finishes a removal by taking it over


def remove_aside(number: int, counter: int) -> Algorithm[None]:
    """Remove `holders/`, rename the attachment to a name of this actor's own, and remove it there."""
    if (yield RemoveDirectory(HOLDERS)) is StepOutcome.DONE:
        aside = names.s_name(names.new_holder(f"{number:032x}", counter << 16))
        yield Rename(PLACE, aside)
        yield from linking.drop(aside)


def take_over(number: int) -> Actor:
    """After a grace time, make `holders/` again, hold the attachment, and unlink it like any holder."""
    holder = names.new_holder(f"{number:032x}", 0)

    def start() -> Algorithm[None]:
        yield MakeDirectory(HOLDERS)
        if (yield CreateFile(f"{HOLDERS}/{holder}")) is StepOutcome.DONE:
            yield RemoveFile(f"{HOLDERS}/{holder}")
            yield from remove_aside(number, 1)

    return Actor(f"take over {number}", holder, start)


def test_two_takeovers_of_one_removal_lose_a_third_nodes_link() -> None:
    actors = [take_over(1), take_over(2), link(3)]
    with pytest.raises(AssertionError, match="lost its hold"):
        Explorer(actors, PLACE, CONTENT, deaths=0, judges_states=False).explore(DEAD)
    Explorer(actors[::2], PLACE, CONTENT, deaths=0, judges_states=False).explore(DEAD)  # a single one does no harm
