from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master_election import links
from master_election.links import LinkTable, LinkUpdate
from master_election.number_bounds import AHEAD_MAX, LEAP, MAX_CLOCK_DIFFERENCE_MS
from protocol.commands import LinkAdvert
from tests.master_election.adverts import adverts_of


class Network:
    """Link tables joined by links, with a queue for each direction of a link."""

    def __init__(self, sids: Iterable[str], removed: Mapping[str, Collection[str]] | None = None) -> None:
        """`removed`: SID -> the nodes that it is told have left for good."""
        self.removed = {**(removed or {})}
        self.clocks_ms = dict.fromkeys(sids, 1)
        self.forged: list[LinkAdvert] = []
        self.tables = {sid: self._table(sid) for sid in sids}
        self.queues: dict[tuple[str, str], deque[tuple[LinkAdvert, ...]]] = {}
        self.changes: dict[str, int] = dict.fromkeys(self.tables, 0)

    def up(self, a: str, b: str) -> None:
        for here, there in ((a, b), (b, a)):
            self.queues[here, there] = deque()
        for here, there in ((a, b), (b, a)):
            self._note(here, self.tables[here].neighbour_up(there, 100))

    def down(self, a: str, b: str) -> None:
        for here, there in ((a, b), (b, a)):
            self.queues.pop((here, there), None)
        for here, there in ((a, b), (b, a)):
            self._note(here, self.tables[here].neighbour_down(there))

    def restart(self, sid: str, clock_ms: int) -> None:
        for near in self.tables[sid].neighbours:
            self.down(sid, near)
        self.clocks_ms[sid] = clock_ms
        self.tables[sid] = self._table(sid)

    def set_removed(self, here: str, removed: Collection[str]) -> None:
        self._note(here, self.tables[here].set_removed(removed))

    def forge(self, here: str, advert: LinkAdvert) -> None:
        """Let the first neighbour forge this advert."""
        self.forged.append(advert)
        self._note(here, self.tables[here].receive([advert], self.tables[here].neighbours[0]))

    def deliver(self, link: tuple[str, str]) -> None:
        """Deliver adverts; only forged ones may be refused, because nodes that pass them on have other clocks."""
        sender, here = link
        update = self.tables[here].receive(self.queues[link].popleft(), sender)
        assert update.unbelieved in (None, *self.forged)
        self._note(here, update)

    def refresh(self, after_ms: int) -> None:
        """Let time pass, and every node send its advert again."""
        for sid, table in self.tables.items():
            self.clocks_ms[sid] += after_ms
            self._note(sid, table.refresh())
            self._note(sid, table.tick())
        self.settle()

    def settle(self) -> None:
        while busy := [link for link, queue in self.queues.items() if queue]:
            self.deliver(busy[0])

    def _table(self, sid: str) -> LinkTable:
        return LinkTable(sid, lambda: self.clocks_ms[sid], 100, removed=self.removed.get(sid, ()))

    def _note(self, here: str, update: LinkUpdate) -> None:
        self.changes[here] += update.component_changed
        for flood in update.floods:
            self.queues[here, flood.to].append(flood.adverts)


def network(sids: str, edges: Sequence[str]) -> Network:
    net = Network(sids)
    for edge in edges:
        net.up(*edge)
    net.settle()
    return net


def test_single_node_is_its_own_component() -> None:
    table = LinkTable("a", lambda: 1, 100)
    assert table.component == ("a",)
    assert table.next_hop("a") is None
    assert table.next_hop("b") is None


def test_root_has_the_lowest_advertised_priority_and_then_sid() -> None:
    net = network("abc", ["ab", "bc"])
    assert {table.root for table in net.tables.values()} == {"a"}
    update = net.tables["a"].receive([LinkAdvert("c", 50, 1000, (("b", 1),))], "b")
    assert (update.component_changed, update.routes_changed, net.tables["a"].root) == (True, False, "c")
    update = net.tables["a"].receive([LinkAdvert("c", 60, 1001, (("b", 1),))], "b")
    assert (net.tables["a"].root, net.tables["a"].component) == ("c", ("a", "b", "c"))


def test_link_counts_once_both_ends_advertise_it() -> None:
    table = LinkTable("a", lambda: 1, 100)
    update = table.neighbour_up("b", 250)
    assert not update.component_changed
    assert [flood.to for flood in update.floods] == ["b"]
    assert update.floods[0].adverts == (LinkAdvert("a", 100, 2, (("b", 250),)),)
    assert not table.receive([LinkAdvert("b", 100, 7, ())], "b").component_changed
    assert table.edges == {}
    assert table.receive([LinkAdvert("b", 100, 8, (("a", 250),))], "b").component_changed
    assert table.component == ("a", "b")
    assert table.edges == {"a": ("b",), "b": ("a",)}


def test_new_neighbour_gets_the_whole_table_and_others_only_news() -> None:
    net = network("abc", ["ab"])
    update = net.tables["b"].neighbour_up("c", 1)
    sent = {flood.to: sorted(advert.sid for advert in flood.adverts) for flood in update.floods}
    assert sent == {"a": ["b"], "c": ["a", "b"]}


def test_new_adverts_are_flooded_and_old_ones_are_not() -> None:
    net = network("abc", ["ab", "bc", "ac"])
    news = LinkAdvert("c", 100, 1000, ())
    assert [flood.to for flood in net.tables["a"].receive([news], "b").floods] == ["c"]
    assert net.tables["a"].receive([news], "c").floods == ()
    assert net.tables["a"].receive([LinkAdvert("c", 100, 999, ())], "c").floods == ()


def test_next_hop_in_a_line_is_the_middle_node() -> None:
    net = network("abc", ["ab", "bc", "ac"])
    assert net.tables["a"].next_hop("c") == "c"
    net.down("a", "c")
    net.settle()
    assert net.tables["a"].component == ("a", "b", "c")
    assert net.tables["a"].next_hop("c") == "b"
    assert net.tables["c"].next_hop("a") == "b"
    assert net.tables["b"].downstream("a") == ("c",)


def test_lower_sid_carries_where_two_paths_are_equally_long() -> None:
    net = network("abcd", ["ab", "ac", "bd", "cd"])
    assert net.tables["a"].next_hop("d") == "b"
    assert net.tables["c"].next_hop_from("a", "d") == "b"
    assert net.tables["b"].ships("d", "a")
    assert not net.tables["c"].ships("d", "a")
    assert net.tables["c"].ships("c", "a")


def test_all_neighbours_ship_entries_of_absent_nodes() -> None:
    net = network("abc", ["ab", "bc", "ac"])
    assert net.tables["a"].ships("gone", "b")
    assert net.tables["a"].ships("b", "b")
    assert net.tables["c"].ships("b", "b")


def test_dead_node_leaves_the_component_but_its_advert_stays() -> None:
    net = network("abc", ["ab", "bc"])
    net.down("b", "c")
    net.settle()
    assert net.tables["a"].component == ("a", "b")
    assert "c" in adverts_of(net.tables["a"])


def test_restarted_node_overrides_its_past_run() -> None:
    net = network("abc", ["ab", "bc"])
    net.restart("c", clock_ms=1000)
    net.up("b", "c")
    net.settle()
    assert net.tables["a"].component == ("a", "b", "c")


def test_node_whose_clock_went_back_overrides_its_past_run() -> None:
    net = network("abc", ["ab", "bc"])
    for _ in range(5):
        net.down("b", "c")
        net.up("b", "c")
        net.settle()
    net.restart("c", clock_ms=0)
    net.up("b", "c")
    net.settle()
    assert net.tables["a"].component == net.tables["c"].component == ("a", "b", "c")


def test_table_is_limited_and_keeps_reachable_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_NODES", 4)
    net = network("abc", ["ab", "bc"])
    for number in range(10):
        net.tables["a"].receive([LinkAdvert(f"x{number}", 100, 1, ())], "b")
    assert sorted(adverts_of(net.tables["a"])) == ["a", "b", "c", "x9"]
    assert net.tables["a"].receive([LinkAdvert("b", 100, 99, (("a", 1),) * 5)], "b").floods == ()
    assert net.tables["a"].component == ("a", "b", "c")


NOW_MS = 1_763_664_000_000
SIDS = "abcdef"
PAIRS = ["".join(pair) for pair in combinations(SIDS, 2)]


def reachable(start: str, edges: set[str]) -> tuple[str, ...]:
    found = {start}
    while more := {end for edge in edges for end in edge if found & set(edge)} - found:
        found |= more
    return tuple(sorted(found))


@given(
    flips=st.lists(st.sampled_from(PAIRS), max_size=25),
    chooser=st.randoms(use_true_random=False),
    removed=st.dictionaries(st.sampled_from(SIDS), st.sets(st.sampled_from(SIDS), max_size=3), max_size=4),
)
def test_all_tables_of_a_component_agree_once_settled(
    flips: list[str], chooser: Random, removed: dict[str, set[str]]
) -> None:
    """Also if nodes disagree about which of them have left for good."""
    net = Network(SIDS, {sid: gone - {sid} for sid, gone in removed.items()})
    edges: set[str] = set()
    for pair in flips:
        if pair in edges:
            net.down(*pair)
        else:
            net.up(*pair)
        edges ^= {pair}
        for _ in range(3):
            if busy := [link for link, queue in net.queues.items() if queue]:
                net.deliver(chooser.choice(busy))
    net.settle()
    for here in SIDS:
        table = net.tables[here]
        assert table.component == reachable(here, edges)
        for there in table.component:
            path = [here]
            while path[-1] != there:
                hop = net.tables[path[-1]].next_hop(there)
                assert hop is not None
                assert hop == table.next_hop_from(path[-1], there)
                path.append(hop)
            assert len(set(path)) == len(path)


REFRESH_MS = 30_000
EDGES_MS = (0, LEAP, LEAP // 2, MAX_CLOCK_DIFFERENCE_MS, MAX_CLOCK_DIFFERENCE_MS + LEAP, -MAX_CLOCK_DIFFERENCE_MS)
forged_numbers = st.integers(0, 2**63 - 1) | st.builds(
    lambda below, near: NOW_MS + AHEAD_MAX - below + near, st.sampled_from(EDGES_MS), st.integers(-3, 3)
)


@given(
    clocks=st.lists(st.integers(NOW_MS, NOW_MS + MAX_CLOCK_DIFFERENCE_MS), min_size=4, max_size=4),
    forged=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["a", "b", "a.2", "c.2", "x"]), forged_numbers), max_size=4
    ),
)
def test_nodes_override_any_forged_number(clocks: list[int], forged: list[tuple[str, str, int]]) -> None:
    """They do so within little more than twice the allowed clock difference, and send no number that others doubt."""
    net = Network("abcd")
    for sid, clock_ms in zip("abcd", clocks, strict=True):
        net.restart(sid, clock_ms)
    for edge in ("ab", "bc", "cd"):
        net.up(*edge)
    net.settle()
    for here, of, number in forged:
        net.forge(here, LinkAdvert(of, 1, number, (("b", 1),)))
    net.settle()
    for _ in range((2 * MAX_CLOCK_DIFFERENCE_MS + LEAP) // REFRESH_MS + 2):
        net.refresh(REFRESH_MS)
    for sid, table in net.tables.items():
        assert (table.component, table.root) == (("a", "b", "c", "d"), "a")
        assert all(adverts_of(table)[near] == adverts_of(net.tables[near])[near] for near in "abcd"), sid


def test_node_overrides_a_run_only_when_slow_clocks_believe_it() -> None:
    net = Network("ab")
    net.restart("a", NOW_MS + MAX_CLOCK_DIFFERENCE_MS)
    net.restart("b", NOW_MS)
    net.up("a", "b")
    net.settle()
    net.forge("a", LinkAdvert("a.2", 1, NOW_MS + AHEAD_MAX - LEAP, (("b", 1),)))
    assert adverts_of(net.tables["a"])["a"].sequence < AHEAD_MAX
    net.clocks_ms["a"] += 1
    net.clocks_ms["b"] += 1
    net.forge("a", LinkAdvert("a.2", 1, NOW_MS + AHEAD_MAX - LEAP, (("b", 1),)))
    net.settle()
    assert adverts_of(net.tables["b"])["a"].sequence == NOW_MS + AHEAD_MAX + 1


def test_advert_above_the_bound_is_ignored_and_others_count() -> None:
    table = LinkTable("a", lambda: NOW_MS, 100)
    table.neighbour_up("b", 1)
    table.neighbour_up("c", 1)
    far, near = (LinkAdvert("d", 100, NOW_MS + AHEAD_MAX + above, (("c", 1),)) for above in (1, 0))
    update = table.receive([far, LinkAdvert("e", 100, 1, ())], "b")
    assert update.unbelieved == far
    assert [[advert.sid for advert in flood.adverts] for flood in update.floods] == [["e"]]
    assert table.receive([near], "b").unbelieved is None
    assert adverts_of(table)["d"] == near


def test_table_limits_links_and_passes_on_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_LINKS", 10)
    table = LinkTable("a", lambda: 1, 100)
    table.neighbour_up("b", 100)
    table.neighbour_up("c", 100)
    table.receive((LinkAdvert("b", 100, 1, (("a", 100),)), LinkAdvert("c", 100, 1, (("a", 100),))), "b")
    for number in range(20):
        named = tuple((f"{number}-{near}", 1) for near in range(4))
        floods = table.receive((LinkAdvert(f"x{number}", 100, 1, named),), "b").floods
        assert [flood.to for flood in floods] == ["c"]
        assert sum(len(advert.neighbours) for advert in adverts_of(table).values()) <= 10
    too_many = tuple((f"y{near}", 1) for near in range(11))
    assert table.receive((LinkAdvert("y", 100, 1, too_many),), "b").floods == ()
    assert table.component == ("a", "b", "c")


# ---- removed nodes -----------------------------------------------------------------------------------------------


def test_adverts_of_a_removed_node_die_out_as_the_others_restart_one_after_the_other() -> None:
    net = network("abc", ["ab", "bc", "ac"])
    for gone in ("ac", "bc"):
        net.down(*gone)
    net.settle()
    for clock_ms, sid in enumerate("ab", start=1000):
        net.removed[sid] = {"c"}
        net.restart(sid, clock_ms)
        net.up("a", "b")
        net.settle()
        assert set(net.tables[sid].sids) == {"a", "b"}
    assert "c" not in adverts_of(net.tables["b"])  # which was the last to restart
    net.restart("a", 2000)
    net.up("a", "b")
    net.settle()
    assert "c" not in adverts_of(net.tables["a"])


def test_removed_node_counts_while_a_node_that_does_not_know_of_it_reaches_it() -> None:
    net = network("abc", ["ab", "bc"])
    net.removed["a"] = {"c"}
    net.restart("a", 1000)
    net.up("a", "b")
    net.settle()
    assert net.tables["a"].component == net.tables["b"].component == ("a", "b", "c")
    assert not net.tables["a"].is_gone("c")
    net.down("b", "c")
    net.settle()
    assert net.tables["a"].is_gone("c")
    assert not net.tables["b"].is_gone("c")


def test_removed_node_that_is_reached_again_is_told_of_to_those_who_were_not_told_before() -> None:
    """While c could not be reached, b kept from a what it had heard of c; c says nothing new when d meets b."""
    net = network("abcd", ["bc", "cd"])
    for sid in "ab":
        net.tables[sid].set_removed({"c"})
    net.down("b", "c")
    net.settle()
    net.up("a", "b")
    net.settle()
    assert "c" not in adverts_of(net.tables["a"])
    net.up("b", "d")
    net.settle()
    assert net.tables["a"].component == net.tables["d"].component == ("a", "b", "c", "d")


def test_advert_that_was_kept_back_is_passed_on_once_its_node_counts_again() -> None:
    """All nodes must compute the same root at once, and c says nothing new when b is told that c has not left."""
    net = network("abcd", ["bd", "cd"])
    net.tables["b"].set_removed({"c"})
    net.down("b", "d")
    net.settle()
    net.up("a", "b")
    net.settle()
    assert "c" not in adverts_of(net.tables["a"])
    net.set_removed("b", ())
    net.settle()
    net.up("b", "d")
    net.settle()
    assert {net.tables[sid].component for sid in "abcd"} == {("a", "b", "c", "d")}


# ---- several runs of one node ------------------------------------------------------------------------------------


def test_node_overrides_adverts_of_a_past_run_at_once() -> None:
    """The past run's clock was ahead, and several of its last adverts are still on the way."""
    table = LinkTable("a.2", lambda: 1, 100)
    table.neighbour_up("b", 1)
    left = [LinkAdvert("a.1", 100, sequence, (("b", 1),)) for sequence in (500, 501, 502, 600)]
    (flood,) = table.receive([left[0]], "b").floods
    assert flood.adverts[0].sequence > 600
    assert [table.receive([advert], "b").rival for advert in left] == [None] * 4
    assert table.receive(left, "b") == LinkUpdate()
    assert table.origin_of("a") == "a.2"


def test_node_waits_before_it_overrides_another_run_again() -> None:
    table = LinkTable("a.2", lambda: 1, 100)
    table.neighbour_up("b", 1)
    first, second, third = (LinkAdvert("a.1", 100, 500 + above * LEAP, (("b", 1),)) for above in (0, 2, 4))
    assert table.receive([first], "b").rival == first
    assert table.receive([second], "b") == LinkUpdate(rival=second)
    assert table.receive([third], "b") == LinkUpdate()  # this run has sent nothing since the second advert
    (flood,) = table.tick().floods
    assert flood.adverts[0].sequence > third.sequence
    assert table.tick() == LinkUpdate()
    higher = LinkAdvert("a.1", 100, flood.adverts[0].sequence + 1, ())
    update = table.receive([higher], "b")
    assert (len(update.floods), update.rival) == (1, higher)


def test_two_running_processes_answer_each_other_once_a_heartbeat() -> None:
    tables = [LinkTable("a.1", lambda: 1000, 100), LinkTable("a.2", lambda: 2000, 100)]
    tables[0].neighbour_up("b", 1)
    said = deque((1, flood.adverts) for flood in tables[1].neighbour_up("b", 1).floods)
    heard: list[list[str]] = []
    for _ in range(10):
        heard.append([])
        while said:
            number, adverts = said.popleft()
            update = tables[1 - number].receive(adverts, "b")
            heard[-1] += [update.rival.origin] if update.rival else []
            assert len(heard[-1]) < 10
            said += [(1 - number, flood.adverts) for flood in update.floods]
        for number, table in enumerate(tables):
            said += [(number, flood.adverts) for flood in table.tick().floods]
    assert heard[0] == ["a.2", "a.1", "a.2"]
    assert all(sorted(origins) == ["a.1", "a.2"] for origins in heard[1:])


def test_origin_of_a_node_is_known_while_it_is_reachable() -> None:
    table = LinkTable("a.1", lambda: 1, 100)
    table.neighbour_up("b", 1)
    table.receive([LinkAdvert("b.7", 100, 5, (("a", 1),))], "b")
    assert (table.origin_of("b"), table.origin_of("c")) == ("b.7", None)
    table.neighbour_down("b")
    assert table.origin_of("b") is None


def test_later_run_changes_the_component_only_once() -> None:
    table = LinkTable("a.1", lambda: 1, 100)
    table.neighbour_up("b", 250)
    runs = ("b.9", "b.9", "b.10", "b.9", "b.10", "b.11")
    changes = [
        table.receive([LinkAdvert(origin, 100, sequence, (("a", 250),))], "b").component_changed
        for sequence, origin in enumerate(runs)
    ]
    assert changes == [True, False, True, False, False, True]
