"""Comparison of what a Dovecot and the nodes show."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import zip_longest

from replicator.mail.dovecot_guids import COPIES_MAX, guid_of_copy
from tests.dsync.histories.side import Account


def differences(dovecot: Account, node: Account, copies: Collection[str]) -> Iterator[str]:
    """Yield what differs, as text.

    `copies`: GUIDs that Dovecot has given to several mails of a folder. All but one of those have others at a node
    (docs/dovecot.md, "What differs"); all else has to be the same.
    """
    numbers = range(1, COPIES_MAX + 1)
    sources = {guid_of_copy(bytes.fromhex(guid), number).hex(): guid for guid in copies for number in numbers}
    if dovecot.subscriptions != node.subscriptions:
        yield f"subscriptions: {sorted(dovecot.subscriptions)} at Dovecot, {sorted(node.subscriptions)} at nodes"
    if dovecot.folders.keys() != node.folders.keys():
        yield f"folders: {sorted(dovecot.folders)} at Dovecot, {sorted(node.folders)} at nodes"
    for name in sorted(dovecot.folders.keys() & node.folders.keys()):
        theirs, ours = dovecot.folders[name], node.folders[name]
        sourced = [mail._replace(guid=sources.get(mail.guid, mail.guid)) for mail in ours.mails]
        pairs = zip_longest(theirs.mails, ours.mails, sourced)
        are_equal = all(one in {other, source} for one, other, source in pairs)
        if not are_equal or (theirs.uidvalidity, theirs.uidnext) != (ours.uidvalidity, ours.uidnext):
            yield f"{name}: {theirs} at Dovecot, {ours} at nodes"
