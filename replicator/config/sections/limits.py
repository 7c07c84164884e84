"""Limits on what clients may ask for: [limits]; and on what each user's mail may take: [quota]."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum

from protocol.units import GIB, KIB, MIB
from replicator.config import values
from replicator.config.formatting import quoted, size_text
from replicator.config.source import Section
from replicator.mime.header import MAX_FIELDS
from replicator.runtime.sizes import MESSAGES_MAX


def _limit(default: int, *, lowest: int = 1, highest: int) -> int:
    """Return a field of `LimitsConfig` with inclusive bounds, which the loader checks."""
    limit: int = field(default=default, metadata={"lowest": lowest, "highest": highest})
    return limit


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Limits on clients and strangers; a key's first word is the door. Add a key here and in docs/configuration.md.

    Whoever refuses something because of a limit counts it with `replicator.runtime.metrics.RefusalMetrics`.
    """

    imap_search_keys: int = _limit(500, highest=10_000)
    imap_search_work: int = _limit(20_000_000, lowest=1_000, highest=10**12)
    imap_sort_messages: int = _limit(200_000, lowest=1_000, highest=10**7)
    imap_header_cache_bytes: int = _limit(64 * MIB, lowest=KIB, highest=64 * GIB)
    imap_fetch_items: int = _limit(100, highest=10_000)
    imap_list_wildcards: int = _limit(16, highest=1_000)
    imap_notify_mailboxes: int = _limit(1_000, highest=100_000)
    imap_folders_per_user: int = _limit(10_000, highest=30_000)
    imap_annotation_bytes: int = _limit(16 * KIB, lowest=1_024, highest=64 * KIB)
    imap_annotations_per_folder: int = _limit(100, lowest=10, highest=1_000)
    imap_annotations_per_user: int = _limit(1_000, lowest=10, highest=10_000)
    imap_header_fields: int = _limit(MAX_FIELDS, lowest=100, highest=100_000)
    imap_connections: int = _limit(1000, highest=100_000)
    imap_connections_per_user: int = _limit(50, highest=10_000)
    imap_unauthenticated: int = _limit(250, highest=100_000)
    imap_unauthenticated_per_address: int = _limit(20, highest=100_000)
    imap_unauthenticated_on_loopback: int = _limit(100, highest=100_000)
    imap_token_bytes: int = _limit(16_384, lowest=1_024, highest=32_768)
    imap_login_seconds: int = _limit(60, lowest=10, highest=600)
    imap_idle_seconds: int = _limit(1_800, lowest=1_800, highest=86_400)
    lmtp_connections: int = _limit(200, highest=10_000)
    lmtp_connections_per_address: int = _limit(100, highest=10_000)
    lmtp_idle_seconds: int = _limit(300, lowest=60, highest=3_600)
    socketmap_connections: int = _limit(200, highest=10_000)
    socketmap_idle_seconds: int = _limit(300, lowest=10, highest=3_600)
    doveadm_connections: int = _limit(50, highest=1_000)
    http_connections: int = _limit(64, highest=10_000)
    http_heads_per_address: int = _limit(32, highest=10_000)
    http_streams: int = _limit(16, highest=10_000)
    http_head_seconds: int = _limit(75, lowest=5, highest=3_600)
    peer_hello_bytes: int = _limit(8192, lowest=1024, highest=65_536)
    peer_strangers: int = _limit(64, highest=1024)
    peer_strangers_per_address: int = _limit(16, highest=1024)


def read_limits(section: Section) -> LimitsConfig:
    """Read [limits]."""

    def limit(key: str, lowest: int, highest: int) -> int:
        default: int = getattr(defaults, key)
        return section.take(key, values.whole_number(lowest, highest), default)

    defaults = LimitsConfig()
    return LimitsConfig(**{key.name: limit(key.name, **key.metadata) for key in fields(LimitsConfig)})


def format_limits(limits: LimitsConfig) -> str:
    """Return [limits] as a file has it, with the limits that differ from their defaults; empty: none does."""
    if limits == LimitsConfig():
        return ""
    changed = asdict(limits).items() - asdict(LimitsConfig()).items()
    return "[limits]\n" + "".join(f"{key} = {limit}\n" for key, limit in sorted(changed))


class WhenFull(StrEnum):
    """Reply to a delivery that exceeds a user's quota: for good, or for now."""

    REFUSE = "refuse"
    DEFER = "defer"


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Limits on what each user's mail may take, for users whose line in the passwd-file sets none. None: no limit."""

    storage_bytes: int | None = None
    messages: int | None = None
    when_full: WhenFull = WhenFull.REFUSE


def read_quota(section: Section) -> QuotaConfig:
    """Read [quota]."""
    defaults = QuotaConfig()
    return QuotaConfig(
        storage_bytes=section.take("storage", values.size(lowest_bytes=1), defaults.storage_bytes),
        messages=section.take("messages", values.whole_number(1, MESSAGES_MAX), defaults.messages),
        when_full=section.take("when_full", values.choice(WhenFull), defaults.when_full),
    )


def format_quota(quota: QuotaConfig) -> str:
    """Return [quota] as a file has it."""
    return (
        "[quota]    # of each user; the passwd-file can say otherwise of one\n"
        + (f"storage = {size_text(quota.storage_bytes)}\n" if quota.storage_bytes is not None else "")
        + (f"messages = {quota.messages}\n" if quota.messages is not None else "")
        + f'when_full = {quoted(quota.when_full)}    # "refuse" or "defer" what LMTP delivers\n'
    )
