"""Plans that seeds draw: the cluster, its network, its load, and its faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import StrEnum

from replicator.config import (
    ConflictConfig,
    ContentConfig,
    DurabilityConfig,
    LogConfig,
    MastershipConfig,
    Scope,
    UidConflict,
    WhenShort,
)

CLOCK_WINDOW_S = 290.0  # nodes whose clocks are five minutes apart refuse to link, which a scenario tests

MUTATING = 0.1  # share of the seeds
LYING = 0.2  # share of the seeds, apart from those
MOVING = 0.3  # share of the seeds
ALTERING = 0.1  # share of the seeds
LONG = 0.05  # share of the seeds of at most three nodes: each costs as much as ten others, and finds as much

NO_LIMIT_S = 1e6  # longer than any simulation


class Deception(StrEnum):
    """Faults that make nodes believe falsehoods, so that a client may hear OK for more copies than there are."""

    BAD_LINES = "links change what they carry"
    LIARS = "nodes lie"


@dataclass(frozen=True)
class Plan:
    """The plan of a simulation; the defaults are for scenarios."""

    seed: str = "scenario"
    size: int = 3
    durability: DurabilityConfig = field(default_factory=DurabilityConfig)
    mastership: MastershipConfig = field(default_factory=MastershipConfig)
    conflict: ConflictConfig = field(default_factory=ConflictConfig)
    log: LogConfig | None = None  # None: no entry ever leaves it
    content: ContentConfig = field(default_factory=ContentConfig)
    undeletes: bool = False  # clients undelete expunged mail, whose retention ends when the simulation does
    moves_masters: bool = False  # an operator moves masters while clients work
    priorities: tuple[int, ...] = ()  # of the nodes in order; 0 where there is none
    delay_s: tuple[float, float] = (0.0, 0.0)  # of one direction of a link: minimum, maximum
    jitter_s: float = 0.0
    sync_s: float = 0.001
    clocks_s: tuple[float, float] = (0.0, 0.0)  # seconds that clocks may be ahead: minimum, maximum
    clients: int = 0
    readers: int = 0  # IMAP sessions
    users: tuple[str, ...] = ("alice",)
    pause_s: float = 1.0  # maximum pause of a client between two sessions
    chaos_s: float = 0.0
    weights: dict[str, float] = field(default_factory=dict)  # of the kinds of faults
    faults: frozenset[int] | None = None  # the numbers of the faults that happen; None: all
    fault_pause_s: float = 4.0  # maximum pause between two faults
    deception: Deception | None = None
    reads_wire: bool = False  # everything that crossed the links is parsed afterwards

    @property
    def has_short_log(self) -> bool:
        """True if entries leave the logs although nodes may lack them."""
        return self.log is not None and self.log.keep_s < NO_LIMIT_S

    @property
    def alters_histories(self) -> bool:
        """True if disks alter histories, so that heads may have others than their entries."""
        return bool(self.weights.get("alter_histories"))

    @property
    def has_short_retention(self) -> bool:
        """True if expunged mail is kept for less time than nodes may be separated: a body may be gone then."""
        return self.content.keep_expunged_s < NO_LIMIT_S

    def __str__(self) -> str:
        low, high = self.delay_s
        weights = ", ".join(f"{name} {weight:g}" for name, weight in self.weights.items() if weight)
        return (
            f"{self.size} nodes, {self.durability.copies} copies, {self.durability.when_short} when short,"
            f" parts above {self.content.inline_max_bytes} bytes apart,"
            f" scope {self.mastership.scope}, {self.conflict.uid} on conflict,"
            f" {f'log kept for {self.log.keep_s:g} s and {self.log.max_size_bytes} bytes' if self.log else 'log kept'},"
            f"{f' undelete, of what is kept for {self.content.keep_expunged_s:g} s,' if self.undeletes else ''}"
            f"{' masters are moved,' if self.moves_masters else ''}"
            f"{f' {self.deception},' if self.deception else ''}"
            f" heartbeat {self.mastership.heartbeat_s:g} s, timeout {self.mastership.timeout_s:g} s,"
            f" priorities {self.priorities}, delay {low * 1000:.1f} to {high * 1000:.1f} ms, jitter"
            f" {self.jitter_s * 1000:.1f} ms, sync {self.sync_s * 1000:.1f} ms,"
            f" clocks {self.clocks_s[0]:.0f} to {self.clocks_s[1]:.0f} s ahead;"
            f" {self.clients} clients and {self.readers} readers of {', '.join(self.users)};"
            f" {self.chaos_s:.0f} s with {weights or 'no faults'}"
        )


def draw(seed: int, kinds: tuple[str, ...], deception: Deception | None = None) -> Plan:
    """Return the plan of a seed. `kinds`: of faults. `deception`: happens even if the seed does not say so."""
    dice = random.Random(f"plan {seed}")
    size = dice.choices(range(2, 10), (15, 52, 17, 10, 3, 1, 1, 1))[0]
    copies = dice.choices((1, 2, 3), (2, 6, 2))[0]
    delay_s = dice.choice(((0.0001, 0.001), (0.0001, 0.04), (0.01, 0.1)))
    heartbeat_s = dice.choice((0.5, 1.0, 1.0, 2.0)) if size <= 4 else 2.0
    is_long = size <= 3 and dice.random() < LONG
    low_s = dice.uniform(-240, -50)
    plan = Plan(
        seed=str(seed),
        size=size,
        durability=DurabilityConfig(min(copies, size), dice.choice((*WhenShort, WhenShort.PROCEED))),
        mastership=MastershipConfig(dice.choice(list(Scope)), heartbeat_s, 4 * heartbeat_s),
        conflict=ConflictConfig(dice.choice(list(UidConflict))),
        priorities=tuple(dice.choice((0, 0, 1, 2)) for _ in range(size)),
        delay_s=delay_s,
        jitter_s=dice.choice((0, delay_s[1] / 4, 2 * delay_s[1])),
        sync_s=dice.choice((0.0005, 0.002, 0.01)),
        clocks_s=dice.choice(((0.0, 0.0), (-1.0, 1.0), (low_s, low_s + CLOCK_WINDOW_S))),
        clients=dice.randint(2, 6),
        readers=dice.choice((0, 1, 2)),
        users=("alice", "bob", "carol@example.org")[: dice.choice((1, 1, 1, 1, 2, 3))],
        pause_s=dice.choice((0.2, 0.4, 0.8)),
        chaos_s=dice.uniform(40, 80) if is_long else dice.uniform(4, 10) * min(1.0, (3 / size) ** 1.5),
        weights={
            kind: dice.choice((0.0, 0.3, 1.0, 1.0, 3.0)) * (2 if "part" in kind or kind == "lose_disk" else 1)
            for kind in kinds
        },
        fault_pause_s=dice.choice((1.0, 2.0, 4.0)),
        reads_wire=seed % 10 == 0,
    )
    if random.Random(f"histories {seed}").random() < ALTERING:
        plan = replace(plan, weights=plan.weights | {"alter_histories": 3.0})
    keep_s = _keep_expunged_s(seed)
    content = _content(seed) if keep_s is None else replace(_content(seed), keep_expunged_s=keep_s)
    moves = random.Random(f"moves {seed}").random() < MOVING
    plan = replace(
        plan,
        log=_log(seed, plan.weights),
        content=content,
        undeletes=keep_s is not None,
        moves_masters=moves,
    )
    deception = deception or _deception(seed)
    return plan if deception is None else _deceiving(plan, deception)


def _deception(seed: int) -> Deception | None:
    share = random.Random(f"deception {seed}").random()
    if share < MUTATING:
        return Deception.BAD_LINES
    return Deception.LIARS if share < MUTATING + LYING else None


def _deceiving(plan: Plan, deception: Deception) -> Plan:
    """Return the plan with this deception.

    No disk is lost: clients may be told of more copies than there are. Mostly no other fault ends links.
    """
    is_alone = random.Random(f"deception alone {plan.seed}").random() < 0.7
    weights = {kind: 0.0 if is_alone or kind == "lose_disk" else weight for kind, weight in plan.weights.items()}
    if deception is Deception.LIARS:
        weights["lie"] = 6.0
        chaos_s = min(20.0, 2 * plan.chaos_s)
    else:
        weights |= {"mutate": 4.0, "flip": 2.0}
        chaos_s = min(12.0, plan.chaos_s)
    return replace(plan, deception=deception, weights=weights, chaos_s=chaos_s, reads_wire=False)


def _content(seed: int) -> ContentConfig:
    """Return limits at which, mostly, parts of small messages are attachments."""
    dice = random.Random(f"content {seed}")
    return replace(ContentConfig(), inline_max_bytes=dice.choice((1, 64, 1 << 10, 1 << 16)))


def _keep_expunged_s(seed: int) -> float | None:
    """Return the retention of expunged mail, or None if clients undelete nothing, and it is kept."""
    return random.Random(f"expunged {seed}").choice((None, None, None, None, NO_LIMIT_S, NO_LIMIT_S, 0.5, 3.0))


def _log(seed: int, weights: dict[str, float]) -> LogConfig | None:
    """Return how long the log is kept; None: for ever.

    Where disks are lost, entries that a node needs stay: a branch that no node shows is in logs only.
    """
    dice = random.Random(f"log {seed}")
    if dice.random() < 0.4:
        return None
    if weights.get("lose_disk") or dice.random() < 0.4:
        return LogConfig(keep_s=NO_LIMIT_S, max_size_bytes=1 << 40)
    return LogConfig(keep_s=dice.choice((0.5, 2.0, 5.0)), max_size_bytes=dice.choice((1 << 12, 1 << 14, 1 << 30)))
