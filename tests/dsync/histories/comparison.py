"""Comparison of what a Dovecot and the nodes show."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from replicator.dsync.rules.copies import COPIES_MAX, guid_of_copy
from tests.dsync.histories.side import Account


def differences(dovecot: Account, node: Account, copies: Collection[str]) -> Iterator[str]:
    """Yield what differs, as text.

    `copies`: GUIDs that Dovecot has given to several mails of a folder. All but one of those have others at a node
    (docs/dovecot.md, "What differs"); all else has to be the same.
    """
    sources = {guid_of_copy(guid, number): guid for guid in copies for number in range(1, COPIES_MAX + 1)}
    if dovecot.subscriptions != node.subscriptions:
        yield f"subscriptions: {sorted(dovecot.subscriptions)} at Dovecot, {sorted(node.subscriptions)} at nodes"
    if dovecot.folders.keys() != node.folders.keys():
        yield f"folders: {sorted(dovecot.folders)} at Dovecot, {sorted(node.folders)} at nodes"
    for name in sorted(dovecot.folders.keys() & node.folders.keys()):
        theirs, ours = dovecot.folders[name], node.folders[name]
        ours = replace(ours, mails=tuple(one._replace(guid=sources.get(one.guid, one.guid)) for one in ours.mails))
        if theirs != replace(ours, mailbox_id=theirs.mailbox_id):
            yield f"{name}: {theirs} at Dovecot, {ours} at nodes"
