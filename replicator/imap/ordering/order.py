"""The order in which a client is told of messages."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple


class Order(NamedTuple):
    """The places of messages, which ascend by UID, in the order in which the client is told of them.

    `forms`: of the thread lists, if it is one of threads; each has "%d" where the number of the next message is to be.
    """

    places: array[int]
    forms: Sequence[bytes] = ()
