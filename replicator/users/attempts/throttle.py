"""Delays of password attempts after failed ones. No I/O: the time is an argument.

Failures are counted so that one person's guesses delay others little. A failure counts against its pair of a user and
an address. Only the few failures that a pair has free count against the user and the address too. So one address that
guesses at one user delays that pair alone; the user is delayed after guesses from several addresses, and the address
after guesses at several users. A user who has logged in from an address before is delayed there by failures of that
pair alone, and an address from which a user has logged in may have many more failures.

Each of these has a level that rises by one with a failure and leaks away over time. Up to a free allowance nothing
waits; above it, each failure doubles the delay, up to a limit that a person who mistyped can bear. The delay counts
from the last failure, so a later attempt does not wait at all.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import ceil, exp2
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

LEAK_S = 20.0
"""Seconds after which one failure is forgotten."""

FIRST_DELAY_S = 0.5
DELAY_MAX_S = 8.0
"""IMAP clients give up on a login after some 30 seconds."""

EXCESS_MAX = 6
"""Failures above the allowance that are counted: a few minutes after the last guess, all is forgotten."""

FREE_FAILURES_PAIR = 3
FREE_FAILURES_USER = 10
FREE_FAILURES_ADDRESS = 10
FREE_FAILURES_SHARED_ADDRESS = 100
"""Allowance of an address from which somebody has logged in: many people may share it, and one device may guess."""

ENTRIES_MAX = 10_000
"""Keys in each half of a table, about 2 MiB."""

NAME_CHARACTERS_MAX = 254
"""Characters of a name that count. No user has a longer one (`passwd_file`), but a stranger may send it."""

KNOWN_USERS_MAX = 20_000
KNOWN_ADDRESSES_PER_USER = 8
"""Addresses from which a user has logged in: a person's home, office and mobile networks. All of them need 25 MiB."""


@dataclass(slots=True)
class _Failures:
    level: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Penalty:
    """The delay of attempts at a user from an address; None: at any user, or from any address.

    `failures`: those that are not forgotten yet. Attempts wait for `waits_s` seconds from now; another failure makes
    others wait for the next `forgotten_s` seconds.
    """

    user: str | None
    address: str | None
    failures: int
    waits_s: float
    forgotten_s: float


class FailureTable(Generic[K]):
    """Failures by key. A key may have `free` failures before its attempts are delayed.

    Full tables drop the keys that failed longest ago. Keys that are delayed have a table of their own, so that single
    failures of many keys, which cost an attacker little, drop none of them.
    """

    def __init__(self, free: int) -> None:
        self._free = free
        self._counted: OrderedDict[K, _Failures] = OrderedDict()
        self._delayed: OrderedDict[K, _Failures] = OrderedDict()

    def ready_at(self, key: K) -> float:
        """Return the time at which the next attempt may proceed; in the past if that is now."""
        failures = self._delayed.get(key)
        if failures is None:
            return 0.0
        return failures.last_s + min(DELAY_MAX_S, FIRST_DELAY_S * exp2(failures.level - self._free - 1))

    def failed(self, key: K, now: float) -> bool:
        """Count a failure. Return True if the key is within its allowance."""
        failures = self._counted.pop(key, None) or self._delayed.pop(key, None) or _Failures(0.0, now)
        leaked = max(0.0, failures.level - (now - failures.last_s) / LEAK_S)
        level = min(leaked + 1, self._free + EXCESS_MAX)
        table = self._counted if level <= self._free else self._delayed
        table[key] = _Failures(level, now)
        if len(table) > ENTRIES_MAX:
            table.popitem(last=False)
        return level <= self._free

    def penalties(self, now: float, name: Callable[[K], tuple[str | None, str | None]]) -> Iterator[Penalty]:
        """Yield the keys that are above their allowance, as users and addresses by `name`."""
        for key, failures in self._delayed.items():
            level = failures.level - (now - failures.last_s) / LEAK_S
            waits_s = max(0.0, self.ready_at(key) - now)
            if level > self._free or waits_s:
                forgotten_s = max(waits_s, (level - self._free) * LEAK_S)
                yield Penalty(*name(key), ceil(level), waits_s, forgotten_s)

    def forget_if(self, is_meant: Callable[[K], bool]) -> None:
        """Reset the failures of these keys."""
        for key in [key for table in (self._counted, self._delayed) for key in table if is_meant(key)]:
            self.forget(key)

    def forget(self, key: K) -> None:
        """Reset the key's failures."""
        self._counted.pop(key, None)
        self._delayed.pop(key, None)

    def __len__(self) -> int:
        return len(self._counted) + len(self._delayed)


class KnownAddresses:
    """Addresses from which each user has logged in, the last few of them.

    A user with many addresses, who may be an attacker with an account, drops nobody else's.
    """

    def __init__(self) -> None:
        self._by_user: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        self._users: Counter[str] = Counter()  # by address

    def add(self, user: str, address: str) -> None:
        """Note a login."""
        addresses = self._by_user.setdefault(user, OrderedDict())
        self._by_user.move_to_end(user)
        if address in addresses:
            addresses.move_to_end(address)
            return
        addresses[address] = None
        self._users[address] += 1
        if len(addresses) > KNOWN_ADDRESSES_PER_USER:
            self._drop(addresses.popitem(last=False)[0])
        if len(self._by_user) > KNOWN_USERS_MAX:
            for dropped in self._by_user.popitem(last=False)[1]:
                self._drop(dropped)

    def has_pair(self, user: str, address: str) -> bool:
        """Return True if the user has logged in from the address."""
        return address in self._by_user.get(user, ())

    def has(self, address: str) -> bool:
        """Return True if anyone has logged in from the address."""
        return address in self._users

    def __len__(self) -> int:
        return sum(self._users.values())

    def _drop(self, address: str) -> None:
        self._users[address] -= 1
        if not self._users[address]:
            del self._users[address]


class Throttle:
    """The delay of each attempt, by its user and its address."""

    def __init__(self) -> None:
        self._pairs: FailureTable[tuple[str, str]] = FailureTable(FREE_FAILURES_PAIR)
        self._users: FailureTable[str] = FailureTable(FREE_FAILURES_USER)
        self._addresses: FailureTable[str] = FailureTable(FREE_FAILURES_ADDRESS)
        self._shared_addresses: FailureTable[str] = FailureTable(FREE_FAILURES_SHARED_ADDRESS)
        self._known = KnownAddresses()

    def ready_at(self, user: str, address: str) -> float:
        """Return the time at which the next attempt may proceed; in the past if that is now."""
        user = user[:NAME_CHARACTERS_MAX]
        pair = self._pairs.ready_at((user, address))
        if self._known.has_pair(user, address):
            return pair
        return max(pair, self._users.ready_at(user), self._failures_of(address).ready_at(address))

    def failed(self, user: str, address: str, now: float) -> None:
        """Count a wrong password."""
        user = user[:NAME_CHARACTERS_MAX]
        if self._pairs.failed((user, address), now):
            self._users.failed(user, now)
            self._failures_of(address).failed(address, now)

    def succeeded(self, user: str, address: str) -> None:
        """Note a right password.

        The address keeps its failures: a successful login to one account must not buy guesses at others. The user's
        stay too, because others may go on guessing elsewhere.
        """
        self._pairs.forget((user, address))
        self._known.add(user, address)

    def penalties(self, now: float) -> list[Penalty]:
        """Return who is delayed, or would be by another failure."""
        return [
            *self._pairs.penalties(now, lambda pair: pair),
            *self._users.penalties(now, lambda user: (user, None)),
            *self._addresses.penalties(now, lambda address: (None, address)),
            *self._shared_addresses.penalties(now, lambda address: (None, address)),
        ]

    def forgive(self, names: AbstractSet[str] | None) -> None:
        """Forget all failures of these users and addresses; None: of everybody. Attempts that wait already wait on."""
        self._pairs.forget_if(lambda pair: names is None or not names.isdisjoint(pair))
        for table in (self._users, self._addresses, self._shared_addresses):
            table.forget_if(lambda key: names is None or key in names)

    def _failures_of(self, address: str) -> FailureTable[str]:
        return self._shared_addresses if self._known.has(address) else self._addresses
