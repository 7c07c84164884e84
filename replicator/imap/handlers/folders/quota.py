"""Commands on quotas (RFC 9208).

A user with limits has one quota root, of all folders; a user without any has none.
"""

from __future__ import annotations

from protocol.units import KIB
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import quota_response, quota_root_response
from replicator.mail.mailstore import Quota

ROOT = "User quota"  # clients show it to people


async def get_quota(session: Session, command: c.GetQuota) -> Completion:
    """Run GETQUOTA."""
    resources = _resources(await session.mail.quota(session.user))
    if command.root != ROOT.encode() or not resources:
        raise CommandFailedError("You have no such quota root; GETQUOTAROOT tells the roots", "NONEXISTENT")
    await session.write([quota_response(ROOT, resources)])
    return Completion("Quota listed")


async def get_quota_root(session: Session, command: c.GetQuotaRoot) -> Completion:
    """Run GETQUOTAROOT: one root covers all mailboxes, also those that do not exist yet."""
    resources = _resources(await session.mail.quota(session.user))
    lines = [quota_root_response(command.mailbox, [ROOT] if resources else [], utf8=session.aware.utf8)]
    if resources:
        lines.append(quota_response(ROOT, resources))
    await session.write(lines)
    return Completion("Quota roots listed")


async def set_quota(_session: Session, _command: c.SetQuota) -> Completion:
    """Refuse SETQUOTA, which a server without the capability QUOTASET need not know."""
    raise CommandFailedError("Quotas are set by the operator of this server", "NOPERM")


def _resources(quota: Quota) -> list[tuple[str, int, int]]:
    """Return the limited resources, each with what is used and its limit (RFC 9208 section 5)."""
    found = []
    if quota.limits.storage_bytes is not None:  # in units of 1024 octets
        found.append(("STORAGE", -(-quota.storage_bytes // KIB), quota.limits.storage_bytes // KIB))
    if quota.limits.messages is not None:
        found.append(("MESSAGE", quota.messages, quota.limits.messages))
    return found
