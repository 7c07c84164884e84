"""The keys that the configurations of a cluster's nodes must have in common (docs/configuration.md, last section)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from replicator.config.config import Config
from replicator.config.sections.certificates import TlsMode


class _Common(NamedTuple):
    key: str
    value: Callable[[Config], object]
    why: str


_COMMON = (
    _Common("cluster in [node]", lambda config: config.node.cluster, "nodes refuse those of another cluster"),
    _Common("scope in [mastership]", lambda config: str(config.mastership.scope), "masters could not be found"),
    _Common("uid in [conflict]", lambda config: str(config.conflict.uid), "it would depend on the master"),
    _Common("source in [users]", lambda config: str(config.users.source), "users would differ"),
    _Common(
        "mode in [tls]",
        lambda config: str(TlsMode.NONE if config.plain_links else TlsMode.MUTUAL),
        "a link needs TLS at both ends or at neither",
    ),
)


def disagreements(configs: Sequence[Config]) -> Iterator[str]:
    """Yield what keeps nodes with these configurations from being one cluster, a sentence each."""
    for near, far in combinations(configs, 2):
        if near.node.id == far.node.id:
            yield f"two files are for {near.node.id!r}: each node needs an id of its own"
            continue
        for common in _COMMON:
            if (one := common.value(near)) != (other := common.value(far)):
                where = f"{one!r} at {near.node.id} and {other!r} at {far.node.id}"
                yield f"{common.key} is {where}; it must be the same, because {common.why}"
        yield from _unlisted(near, far)


def _unlisted(near: Config, far: Config) -> Iterator[str]:
    """Yield which of two nodes does not list the other one, or takes for gone whom the other one does not."""
    for one, other in ((near, far), (far, near)):
        for sid in sorted({peer.id for peer in other.peers} & set(one.node.removed)):
            yield f"{one.node.id} has {sid} in `removed` of [node], and {other.node.id} lists it as a [[peer]]"
        known = {other.node.id, *(peer.id for peer in other.peers), *other.node.removed}
        for sid in sorted(set(one.node.removed) - known):
            why = f"the log of {other.node.id} waits for {sid}"
            yield f"{one.node.id} has {sid} in `removed` of [node], and {other.node.id} has not: {why}"
        if all(peer.id != other.node.id for peer in one.peers):
            yield f"{one.node.id} does not list {other.node.id} as a [[peer]]; nodes list each other"
