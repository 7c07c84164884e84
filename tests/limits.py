"""Limits of users, as `Quotas` asks for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from replicator.users import QuotaLimits


def limits_by(known: Callable[[str], QuotaLimits]) -> Callable[[str], Awaitable[QuotaLimits]]:
    """Return a function that says at once what `known` says of a user."""

    async def limits_of(user: str) -> QuotaLimits:
        return known(user)

    return limits_of
