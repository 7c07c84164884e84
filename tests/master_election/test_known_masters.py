from __future__ import annotations

from random import Random

import pytest

from master_election.known_masters import KnownMasters
from master_election.scope_record import TRANSITIONS, Event, ScopeRecord, Standing
from master_election.scopes import ScopePolicy, scope_of, wider


def test_answer_counts_only_in_the_term_of_its_question() -> None:
    masters = KnownMasters("a")
    assert masters.learn("inbox", "b", asked_in=1)
    assert masters.master("inbox") == "b"
    masters.begin(2)
    assert masters.master("inbox") is None
    assert not masters.learn("inbox", "b", asked_in=1)
    assert masters.master("inbox") is None


def test_own_scopes_end_with_the_term() -> None:
    masters = KnownMasters("a")
    masters.learn("inbox", "a", asked_in=1)
    assert masters.own == {"inbox"}
    assert masters.master("inbox") == "a"
    masters.begin(2)
    assert masters.own == set()


def test_least_recently_used_scopes_are_forgotten_but_not_own_ones() -> None:
    masters = KnownMasters("a", cached_max=2)
    masters.learn("own", "a", asked_in=1)
    for scope in ("x", "y"):
        masters.learn(scope, "b", asked_in=1)
    assert masters.master("x") == "b"
    masters.learn("z", "b", asked_in=1)
    assert [masters.master(scope) for scope in ("own", "x", "y", "z")] == ["a", "b", None, "b"]


def test_wrong_master_is_forgotten() -> None:
    masters = KnownMasters("a")
    masters.learn("inbox", "b", asked_in=1)
    masters.bounced("inbox")
    assert masters.master("inbox") is None


@pytest.mark.parametrize(
    ("policy", "user", "scope"),
    [
        (ScopePolicy.MAILBOX, "u@Example.org", "mailbox:0102"),
        (ScopePolicy.USER, "u@Example.org", "user:u@Example.org"),
        (ScopePolicy.DOMAIN, "u@Example.org", "domain:example.org"),
        (ScopePolicy.DOMAIN, "u", "domain:"),
        (ScopePolicy.GLOBAL, "u", "global"),
        (ScopePolicy.DYNAMIC, "u", "mailbox:0102 of user:u"),
    ],
)
def test_scope_follows_from_the_policy(policy: ScopePolicy, user: str, scope: str) -> None:
    assert scope_of(policy, user, b"\x01\x02") == scope


def a_masters(scope: str = "inbox") -> KnownMasters:
    masters = KnownMasters("a")
    masters.learn(scope, "a", asked_in=1)
    return masters


def b_masters(scope: str = "inbox") -> KnownMasters:
    masters = KnownMasters("a")
    masters.learn(scope, "b", asked_in=1)
    return masters


def test_promised_scope_has_no_master_until_it_is_given() -> None:
    masters = a_masters()
    assert masters.promise("inbox", "inbox")
    assert (masters.master("inbox"), masters.is_ours("inbox"), masters.is_moving("inbox")) == (None, False, True)
    assert not masters.promise("inbox", "inbox"), "the move is already under way"
    assert masters.give("inbox", "b", asked_in=1)
    assert (masters.master("inbox"), masters.is_moving("inbox"), masters.own) == ("b", False, set())


def test_scope_that_cannot_be_given_stays() -> None:
    masters = a_masters()
    masters.promise("inbox", "inbox")
    masters.keep("inbox", asked_in=1)
    assert masters.master("inbox") == "a"
    assert not masters.give("inbox", "b", asked_in=1)


def test_promise_ends_with_the_term() -> None:
    masters = a_masters()
    masters.promise("inbox", "inbox")
    masters.begin(2)
    assert not masters.give("inbox", "b", asked_in=1)
    assert masters.master("inbox") is None


def test_wanted_scope_has_no_master_until_it_is_taken() -> None:
    masters = b_masters()
    assert masters.want("inbox") == "b"
    assert masters.want("inbox") is None, "the move is already under way"
    assert (masters.master("inbox"), masters.is_moving("inbox")) == (None, True)
    assert masters.taken("inbox", "inbox", asked_in=1)
    assert masters.own == {"inbox"}


@pytest.mark.parametrize(("refused", "master"), [(True, "b"), (False, None)])
def test_root_is_asked_again_after_a_move_without_an_answer(refused: bool, master: str | None) -> None:  # noqa: FBT001 - parametrized
    masters = b_masters()
    masters.want("inbox")
    masters.not_taken("inbox", 1, refused=refused)
    assert masters.master("inbox") == master
    assert not masters.taken("inbox", "inbox", asked_in=1), "a later answer comes too late"


def test_own_scope_is_not_wanted() -> None:
    assert a_masters().want("inbox") is None
    assert KnownMasters("a").want("inbox") is None


def test_outdated_answer_of_the_root_changes_nothing() -> None:
    masters = a_masters()
    masters.learn("inbox", "b", asked_in=1)
    assert masters.master("inbox") == "a"


def test_end_of_a_move_is_reported() -> None:
    ends = 0

    def move_ended() -> None:
        nonlocal ends
        ends += 1

    masters = KnownMasters("a", move_ended=move_ended)
    masters.learn("inbox", "b", asked_in=1)
    masters.want("inbox")
    assert ends == 0
    masters.not_taken("inbox", 1, refused=True)
    assert ends == 1
    masters.want("inbox")
    masters.taken("inbox", "inbox", asked_in=1)
    assert ends == 2
    masters.promise("inbox", "inbox")
    masters.keep("inbox", asked_in=1)
    assert ends == 3
    masters.promise("inbox", "inbox")
    masters.begin(2)
    assert ends == 4


PART, USER = "mailbox:01 of user:ann", "user:ann"


def test_part_is_covered_by_the_wider_scope() -> None:
    masters = KnownMasters("a")
    assert masters.learn(PART, "a", asked_in=1, covering=USER)
    assert (masters.covering(PART), masters.own, masters.master(PART)) == (USER, {USER}, "a")


def test_giving_a_part_splits_it_off() -> None:
    masters = KnownMasters("a")
    masters.learn(PART, "a", asked_in=1, covering=USER)
    assert masters.promise(PART, PART)
    assert not masters.is_ours(PART)
    assert masters.give(PART, "b", asked_in=1)
    assert (masters.master(PART), masters.own) == ("b", {USER})


def test_taking_a_part_splits_it_off() -> None:
    masters = KnownMasters("a")
    masters.learn(PART, "b", asked_in=1, covering=USER)
    masters.learn("mailbox:02 of user:ann", "b", asked_in=1, covering=USER)
    masters.want(PART)
    assert masters.is_moving("mailbox:02 of user:ann")
    assert masters.taken(PART, PART, asked_in=1)
    assert (masters.own, masters.own_parts) == ({PART}, [PART])
    assert masters.master("mailbox:02 of user:ann") == "b"


@pytest.mark.parametrize("master", ["a", "b"])
def test_part_joins_the_wider_scope_again(master: str) -> None:
    masters = KnownMasters("a")
    masters.learn(PART, "a", asked_in=1)
    masters.learn("mailbox:02 of user:ann", master, asked_in=1, covering=USER)
    assert masters.promise(PART, PART)
    assert masters.join(PART, master, asked_in=1)
    assert (masters.covering(PART), masters.master(PART), masters.own_parts) == (USER, master, [])


OTHER = "mailbox:02 of user:ann"


def a_masters_user() -> KnownMasters:
    """Make node a, which masters the user's scope."""
    masters = KnownMasters("a")
    for scope in (PART, OTHER):
        masters.learn(scope, "a", asked_in=1, covering=USER)
    return masters


def test_part_that_could_not_be_given_stays_in_the_wider_scope() -> None:
    masters = a_masters_user()
    assert masters.promise(PART, PART)
    assert not masters.promise(OTHER, USER), "a part of the scope is moving"
    masters.keep(PART, asked_in=1)
    masters.learn(PART, "a", asked_in=1, covering=USER)
    assert (masters.own, masters.own_parts, masters.is_ours(PART)) == ({USER}, [], True)
    assert masters.promise(OTHER, USER)
    assert masters.give(USER, "b", asked_in=1)
    assert masters.master(PART) == "b"


def test_wider_scope_stays_until_the_root_knows_its_split_parts() -> None:
    masters = a_masters_user()
    assert masters.promise(PART, PART)
    assert masters.give(PART, "b", asked_in=1)
    assert not masters.promise(OTHER, USER)
    assert masters.promise(OTHER, OTHER)
    masters.keep(OTHER, asked_in=1)
    masters.learn(OTHER, "a", asked_in=1, covering=USER)
    masters.told(PART, asked_in=1)
    assert masters.promise(OTHER, USER)


@pytest.mark.parametrize(("scope", "given"), [("inbox", "inbox"), (PART, PART), (PART, USER)])
def test_given_scope_is_not_asked_for_until_the_root_knows_the_move(scope: str, given: str) -> None:
    masters = KnownMasters("a")
    covering = None if scope == given else USER
    masters.learn(scope, "a", asked_in=1, covering=covering)
    assert masters.promise(scope, given)
    assert masters.give(given, "b", asked_in=1)
    masters.bounced(scope)
    assert masters.learn(scope, "a", asked_in=1, covering=covering)
    assert (masters.master(scope), masters.is_ours(scope)) == ("b", False)
    masters.told(given, asked_in=1)
    masters.bounced(scope)
    assert masters.master(scope) is None


def test_outdated_root_does_not_return_a_promised_part() -> None:
    masters = a_masters_user()
    assert masters.promise(PART, PART)
    assert masters.learn(PART, "a", asked_in=1, covering=USER)
    assert (masters.is_ours(PART), masters.is_moving(PART)) == (False, True)
    assert masters.give(PART, "b", asked_in=1)
    masters.told(PART, asked_in=1)
    assert (masters.is_ours(PART), masters.master(PART)) == (False, "b")


@pytest.mark.parametrize(("scope", "given"), [("inbox", "inbox"), (PART, PART), (PART, USER)])
def test_answer_from_before_a_scope_was_given_is_refused(scope: str, given: str) -> None:
    masters = KnownMasters("a")
    covering = None if scope == given else USER
    masters.learn(scope, "a", asked_in=1, covering=covering)
    before = masters.moves(scope)
    assert masters.promise(scope, given)
    assert masters.give(given, "b", asked_in=1)
    masters.told(given, asked_in=1)
    assert not masters.learn(scope, "a", asked_in=1, covering=covering, moves=before)
    assert not masters.is_ours(scope)
    assert masters.learn(scope, "b", asked_in=1, covering=covering, moves=masters.moves(scope))


def test_news_of_a_part_does_not_disturb_its_move() -> None:
    masters = KnownMasters("a")
    masters.learn(PART, "b", asked_in=1, covering=USER)
    masters.learn(OTHER, "b", asked_in=1, covering=USER)
    masters.want(PART)
    masters.learn(PART, "a", asked_in=1, covering=PART)
    assert masters.taken(PART, PART, asked_in=1)
    assert (masters.is_moving(OTHER), masters.master(OTHER), masters.master(PART)) == (False, "b", "a")


def test_part_split_off_during_a_request_is_wanted_afterwards() -> None:
    masters = KnownMasters("a")
    for scope in (PART, OTHER):
        masters.learn(scope, "b", asked_in=1, covering=USER)
    masters.want(PART)
    masters.learn(PART, "c", asked_in=1, covering=PART)
    assert masters.want(PART) is None
    masters.not_taken(PART, 1, refused=True)
    assert (masters.is_moving(OTHER), masters.is_moving(PART)) == (False, False), "no change may wait for ever"
    assert masters.want(PART) == "c"


def test_wider_scope_is_taken_without_its_split_parts() -> None:
    masters = KnownMasters("a")
    for scope in (PART, OTHER):
        masters.learn(scope, "b", asked_in=1, covering=USER)
    masters.want(OTHER)
    assert masters.taken(OTHER, USER, asked_in=1)
    assert masters.is_ours(OTHER)
    assert (masters.is_ours(PART), masters.master(PART)) == (False, None), "b may have split the part off for c"
    masters.learn(PART, "c", asked_in=1)
    assert (masters.master(PART), masters.own) == ("c", {USER})


def test_wider_scope_from_the_root_comes_without_its_split_parts() -> None:
    masters = KnownMasters("a")
    for scope in (PART, OTHER):
        masters.learn(scope, "b", asked_in=1, covering=USER)
    masters.want(OTHER)
    masters.not_taken(OTHER, 1, refused=False)
    assert masters.learn(OTHER, "a", asked_in=1, covering=USER)
    assert (masters.is_ours(OTHER), masters.is_ours(PART)) == (True, False)


def test_answer_from_before_a_wider_scope_came_is_refused() -> None:
    masters = KnownMasters("a")
    masters.learn(OTHER, "b", asked_in=1, covering=USER)
    before = masters.moves(PART)
    masters.want(OTHER)
    assert masters.taken(OTHER, USER, asked_in=1)
    for master in "ba":
        assert not masters.learn(PART, master, asked_in=1, covering=USER, moves=before), "c may have got the part since"
        assert not masters.is_ours(PART)
    assert masters.learn(PART, "b", asked_in=1, covering=USER, moves=masters.moves(PART)), (
        "the root may hear of the move later"
    )
    assert masters.is_ours(PART)


def test_number_of_remembered_parts_is_limited() -> None:
    masters = KnownMasters("a", cached_max=2)
    for number in range(9):
        masters.learn(f"mailbox:0{number} of user:ann", "b", asked_in=1, covering=USER)
    assert masters.master("mailbox:08 of user:ann") == "b"
    assert masters.master("mailbox:00 of user:ann") is None


@pytest.mark.parametrize(("scope", "around"), [(PART, USER), ("mailbox:01", None), ("user:x of y", None)])
def test_wider_scope_of_a_scope(scope: str, around: str | None) -> None:
    assert wider(scope) == around


def test_transitions_reach_and_leave_every_standing() -> None:
    ways = [(before, after) for (before, _), after in TRANSITIONS.items() if before is not after]
    assert {after for _, after in ways} == {before for before, _ in ways} == set(Standing)


def test_random_events_use_every_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers of the master, the peers and the root are random."""
    stepped = set()
    step = ScopeRecord.step

    def noted(self: ScopeRecord, happening: Event, master: str | None = None) -> bool:
        before = self.standing
        has_row = step(self, happening, master)
        if has_row:
            stepped.add((before, happening))
        return has_row

    monkeypatch.setattr(ScopeRecord, "step", noted)
    rng, masters = Random(1), KnownMasters("a")
    for _ in range(10_000):
        scope, node, is_whole = rng.choice((PART, OTHER)), rng.choice("abc"), rng.random() < 0.5
        covering = USER if is_whole else scope
        match rng.randrange(9):
            case 0 | 1:
                masters.learn(scope, node, 1, covering)
            case 2:
                masters.bounced(scope)
            case 3:
                masters.want(scope)
            case 4:
                masters.taken(scope, covering, 1)
            case 5:
                masters.not_taken(scope, 1, refused=is_whole)
            case 6:
                masters.promise(scope, masters.covering(scope) or scope if is_whole else scope)
            case 7:
                masters.give(covering, "b", 1)
                masters.told(covering, 1)
            case _:
                masters.keep(covering, 1)
                if masters.own_parts and masters.promise(masters.own_parts[0], masters.own_parts[0]):
                    masters.join(scope, node, 1)
        assert_counts(masters)
    assert stepped == set(TRANSITIONS)


def assert_counts(masters: KnownMasters) -> None:
    """Check that counts and indexes agree with the records."""
    held = [scope for scope, record in masters._kept.items() if record.is_held]
    assert masters.own_count == len(held)
    assert set(masters.own_parts) == {scope for scope in masters.own if wider(scope) is not None}
    assert all(record.must_stay for record in masters._kept.values())
    assert not any(record.must_stay or record.is_empty for record in masters._cached.values())
    assert not masters._kept.keys() & masters._cached.keys()
