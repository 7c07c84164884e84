"""One node with very many users, mailboxes and messages that nobody uses, beside one without: what do they cost?

Both sites have the same 20 users who get mail. One has nothing else; at the other the crowd's databases are prepared.
Then both become two nodes: mailboxes are forked, and healed, and dc2 begins anew with nothing. There the site without
the crowd has the users of the forked mailboxes.
"""

from __future__ import annotations

import math
import random
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import click

from benchmarks.clients.load import Load
from benchmarks.clients.wire import MeasurementError
from benchmarks.clusters.apart import run_apart
from benchmarks.clusters.cluster import OWN_OBJECTS, Cluster, Node, Site, UnansweredError
from benchmarks.clusters.crowd import Crowd, prepare_crowd
from benchmarks.clusters.states import are_equal, checkpoint
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure

BUSY = tuple(f"busy{number:02d}" for number in range(20))
QUIET = tuple(f"quiet{number:02d}" for number in range(20))
"""Users of both sites with as many messages as each mailbox of the crowd has."""

STARTS, STATUSES = 3, 5
TURNS = 3
"""Turns of the two sites."""

OTHERS = 5_000
"""Users of the crowd who get mail."""

SETTLE_S, IDLE_S = 20.0, 20.0
MAIL_BYTES = 4096
CONNECTIONS = 8
SIDES = 3
"""Messages that the forked mailboxes get: one before, and one at each side."""

RECIPIENTS = 50
"""Recipients of one mail, where every mailbox is to get one."""

USERS_A_LOAD = 5_000
WITHIN_S, OPENED_WITHIN_S = 1200.0, 180.0
LOOK_EVERY_S = 0.2
SEED = 61


@dataclass
class Measured:
    """The measurements of one node, in seconds, MiB and mails a second."""

    ready_s: float = 0.0
    idle_cpu: float = 0.0
    """Seconds of processor time in a second."""
    started_mib: float = 0.0
    busy_mib: float = 0.0
    counted_s: float = 0.0
    status_s: float = 0.0
    select_s: float = 0.0
    mails_a_s: float = 0.0
    others_mails_a_s: float = 0.0
    round_s: float = 0.0
    heal_s: float = 0.0
    opened_s: float = 0.0
    joined_a_s: float = 0.0
    """Mailboxes and trees that a new node takes over in a second."""


@dataclass
class Place:
    """One of the two sites. `crowd`: names of users whom nobody uses."""

    name: str
    crowd: Sequence[str]
    measured: Measured = field(default_factory=Measured)


def crowd(directory: Path, scale: Scale) -> list[Figure]:
    directory.mkdir(parents=True)
    template = scale.crowd_template or str(directory / "template.db")
    began = time.perf_counter()
    size = Crowd(
        str(directory / "crowd-alone"),
        ["dc1"],
        template,
        scale.crowd_users,
        scale.crowd_mailboxes,
        scale.crowd_messages,
    )
    prepare_crowd(size)
    _tell(f"{size.all_mailboxes:,} mailboxes, {size.all_messages:,} messages: {time.perf_counter() - began:.0f} s")
    few, many = Place("few", ()), Place("crowd", size.names)
    with _one_node(directory, few) as small, _one_node(directory, many) as large:
        _measure_alone([(few, small.nodes[0]), (many, large.nodes[0])], scale)
    shutil.rmtree(size.directory)
    for place in (few, many):
        _tell(f"{place.name}: { {name: round(value, 4) for name, value in vars(place.measured).items()} }")
        _measure_together(directory / f"{place.name}-together", place, size, scale)
    return _figures(few.measured, many.measured, size, scale)


# ---- one node


def _one_node(directory: Path, place: Place) -> Cluster:
    users = [*place.crowd, *BUSY, *QUIET]
    sites = {"dc1": Site(extra=OWN_OBJECTS.format(sid="dc1"))}
    return Cluster(directory / f"{place.name}-alone", users, size=1, copies=1, sites=sites)


def _measure_alone(both: Sequence[tuple[Place, Node]], scale: Scale) -> None:
    """Measure both in turns, because other work on the machine comes and goes."""
    chosen = random.Random(SEED)
    for _, node in both:
        for _ in range(scale.crowd_messages):
            _to_each(node, QUIET)
    _start(both)
    for _, node in both:
        _rate(node, BUSY, scale.delivery_s / TURNS)  # their folders exist from now on
    samples: dict[str, dict[str, list[float]]] = {place.name: defaultdict(list) for place, _ in both}
    for turn in range(TURNS):
        for place, node in both:
            taken = samples[place.name]
            readers = chosen.sample(place.crowd, len(QUIET)) if place.crowd else QUIET
            taken["status_s"] += [_timed(partial(node.get, "/api/v1/status")) for _ in range(STATUSES)]
            taken["select_s"] += [_select_s(node, user) for user in readers if place.crowd or not turn]
            taken["mails_a_s"].append(_rate(node, BUSY, scale.delivery_s / TURNS))
    for place, node in both:
        place.measured.busy_mib = _mib(node)
        checkpoint(node, WITHIN_S)
        _to_each(node, BUSY)
        place.measured.round_s = _timed(partial(checkpoint, node, WITHIN_S))
    for _ in range(TURNS):
        for place, node in both:
            others = chosen.sample(place.crowd, min(OTHERS, len(place.crowd))) if place.crowd else BUSY
            samples[place.name]["others_mails_a_s"].append(_rate(node, others, scale.delivery_s / TURNS))
    for place, _ in both:
        for name, values in samples[place.name].items():
            setattr(place.measured, name, statistics.median(values))


def _start(both: Sequence[tuple[Place, Node]]) -> None:
    """Measure the starts, and what the nodes take while they do nothing."""
    for place, node in both:
        place.measured.ready_s = statistics.median(_start_s(node) for _ in range(STARTS))
        place.measured.started_mib = _mib(node)
        place.measured.counted_s = _timed(partial(_answers, node))
    time.sleep(SETTLE_S)
    before = [node.usage().cpu_s for _, node in both]
    time.sleep(IDLE_S)
    for (place, node), cpu_s in zip(both, before, strict=True):
        place.measured.idle_cpu = (node.usage().cpu_s - cpu_s) / IDLE_S


def _start_s(node: Node) -> float:
    node.stop()
    return _timed(node.start)


def _answers(node: Node) -> None:
    """Return when the node has told its status: first it counts its mailboxes, which may take more than one request."""
    while True:
        with suppress(UnansweredError):
            node.get("/api/v1/status")
            return


def _mib(node: Node) -> float:
    return node.usage().rss_bytes / 2**20


def _rate(node: Node, users: Sequence[str], seconds: float) -> float:
    load = Load((node.address("lmtp"),), tuple(users), CONNECTIONS, 10**9, seconds, MAIL_BYTES, seed=time.time_ns())
    result = run_apart(load, [node])
    return result.mails / result.seconds


def _select_s(node: Node, user: str) -> float:
    with node.imap(user) as imap:
        return _timed(lambda: imap.command("SELECT INBOX"))


# ---- two nodes


def _measure_together(directory: Path, place: Place, size: Crowd, scale: Scale) -> None:
    forked = place.crowd[: scale.crowd_forked] or [f"user{number:06d}" for number in range(scale.crowd_forked)]
    sites = {sid: Site(extra=OWN_OBJECTS.format(sid=sid)) for sid in ("dc1", "dc2")}
    users = [*(place.crowd or forked), *BUSY, *QUIET]
    cluster = Cluster(directory, users, size=2, copies=1, sites=sites, proxied=True)
    if place.crowd:
        prepare_crowd(replace(size, directory=str(directory), sids=["dc1", "dc2"]))
    with cluster:
        _heal_and_join(place, cluster, forked, scale)
    shutil.rmtree(directory)


def _heal_and_join(place: Place, cluster: Cluster, forked: Sequence[str], scale: Scale) -> None:
    measured, messages = place.measured, SIDES + (scale.crowd_messages if place.crowd else 0)
    near, far = cluster.nodes
    _to_each(near, forked)
    cluster.wait_until(are_equal, WITHIN_S)
    cluster.partition(["dc1"], ["dc2"])
    cluster.wait_until(lambda statuses: all(len(_component(one)) == 1 for one in statuses), WITHIN_S)
    for node in cluster.nodes:
        _to_each(node, forked)
    cluster.heal()
    measured.heal_s = cluster.wait_until(are_equal, WITHIN_S)
    _tell(f"heal: {measured.heal_s:.1f} s")
    far.stop()
    shutil.rmtree(far.data)
    shutil.rmtree(cluster.directory / "dc2-objects", ignore_errors=True)
    far.start()
    with ThreadPoolExecutor(1) as reader:
        opened = reader.submit(_opened_s, far, forked[len(forked) // 2], messages)
        measured.joined_a_s = _joined_a_s(cluster, scale.crowd_join_s)
        measured.opened_s = opened.result()
    _tell(f"new node: an INBOX after {measured.opened_s:.1f} s, {measured.joined_a_s:.0f} a second")


def _component(status: dict[str, object]) -> Sequence[object]:
    component = status["component"]
    assert isinstance(component, list)
    return component


def _opened_s(node: Node, user: str, messages: int) -> float:
    """Return the seconds until the user's INBOX can be opened and has all messages; infinity: not soon."""
    began = time.perf_counter()
    while time.perf_counter() - began < OPENED_WITHIN_S:
        with suppress(MeasurementError), node.imap(user) as imap:
            if f"* {messages} EXISTS".encode() in imap.command("SELECT INBOX"):
                return time.perf_counter() - began
        time.sleep(LOOK_EVERY_S)
    return math.inf


def _joined_a_s(cluster: Cluster, within_s: float) -> float:
    """Return the mailboxes that a new node takes over in a second, until it has all or the time is over."""
    began, far = time.perf_counter(), cluster.nodes[1]
    while True:
        with suppress(UnansweredError):  # dc1 may be too busy with what dc2 asks
            status = far.get("/api/v1/status")
            seconds = time.perf_counter() - began
            if seconds > within_s:
                return int(str(status["transfer_done"])) / seconds
            if are_equal([status, cluster.nodes[0].get("/api/v1/status")]):
                return int(str(status["mailboxes"])) / seconds
        time.sleep(LOOK_EVERY_S)


# ---- both


def _to_each(node: Node, users: Sequence[str]) -> None:
    """Deliver one mail to each user."""
    for first in range(0, len(users), USERS_A_LOAD):
        some = tuple(users[first : first + USERS_A_LOAD])
        recipients = min(RECIPIENTS, len(some))
        mails = -(-len(some) // recipients)
        load = Load((node.address("lmtp"),), some, 1, mails, WITHIN_S, MAIL_BYTES, recipients, seed=time.time_ns())
        run_apart(load, [node])


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _tell(text: str) -> None:
    click.echo(f"  {text}", err=True)


def _figures(few: Measured, many: Measured, size: Crowd, scale: Scale) -> list[Figure]:
    without, aim = f"without the {size.users:,} users", "as without them"
    others = f"mails delivered to {min(OTHERS, size.users):,} of these users"
    heals = f"from heal to equal digests, {scale.crowd_forked:,} forked mailboxes"
    detail = {"few": vars(few), "many": vars(many)}
    return [
        Figure("start to ready", many.ready_s, "s", few.ready_s, without, aim, detail),
        Figure("memory after start", many.started_mib, "MiB", few.started_mib, without, aim),
        Figure("from ready to the first status", many.counted_s, "s", few.counted_s, without),
        Figure("status after that", 1000 * many.status_s, "ms", 1000 * few.status_s, without, aim),
        Figure("processor time a second, at rest", 1000 * many.idle_cpu, "ms", 1000 * few.idle_cpu, without, aim),
        Figure("first SELECT of a mailbox", 1000 * many.select_s, "ms", 1000 * few.select_s, without, aim),
        Figure("mails delivered to 20 users", many.mails_a_s, "mails/s", few.mails_a_s, without, aim),
        Figure("memory after that", many.busy_mib, "MiB", few.busy_mib, without, aim),
        Figure(others, many.others_mails_a_s, "mails/s", few.others_mails_a_s, f"to 20 users, {without}"),
        Figure("round of checkpoints, 20 mailboxes changed", many.round_s, "s", few.round_s, without),
        Figure(heals, many.heal_s, "s", few.heal_s, without, aim),
        Figure("a new node: first right SELECT", many.opened_s, "s", few.opened_s, without),
        Figure("a new node: taken over", many.joined_a_s, "mailboxes/s", few.joined_a_s, without),
    ]
