"""Damage to a node's tables, made without the node."""

from collections.abc import Sequence
from dataclasses import dataclass

from replicator.store.db.transaction import Transaction
from tests.replication.cluster import USER, Cluster, Node

INBOX = "(SELECT mailbox_id FROM folder WHERE name = 'INBOX' AND user = 'alice')"
WORK = "(SELECT mailbox_id FROM folder WHERE name = 'Work')"
TREE = "(SELECT id FROM chain WHERE uidvalidity = 0 AND user = 'alice')"
ROW = (
    "uid, origin, seq, change, guid, claim_origin, claim_seq, modseq, flags, received_ms, size_bytes, content_hash,"
    " saved_ms, fingerprint"
)
INTO = f"(mailbox, {ROW})"
ALSO = "x'919292a56463392e7a0500'"  # one placement, of dc9.z:5
BODY_HASH = "(SELECT content_hash FROM by_uid WHERE uid = 2 AND mailbox = " + INBOX + ")"


@dataclass(frozen=True)
class Planted:
    """Statements that do damage, and the number of findings of each kind that a check must report."""

    name: str
    statements: Sequence[str]
    found: dict[str, int]


DAMAGES = [
    Planted("row deleted", [f"DELETE FROM by_uid WHERE uid = 2 AND mailbox = {INBOX}"], {"by_uid": 1}),
    Planted("all rows deleted", [f"DELETE FROM by_uid WHERE mailbox = {INBOX}"], {"by_uid": 3}),
    Planted("flags altered", [f"UPDATE by_uid SET flags = x'80' WHERE uid = 2 AND mailbox = {INBOX}"], {"by_uid": 1}),
    Planted("flags garbled", [f"UPDATE by_uid SET flags = x'c1' WHERE mailbox = {INBOX}"], {"by_uid": 3}),
    Planted(
        "placements added", [f"UPDATE by_uid SET also = {ALSO} WHERE uid = 2 AND mailbox = {INBOX}"], {"by_uid": 1}
    ),
    Planted("placements garbled", [f"UPDATE by_uid SET also = 'x' WHERE mailbox = {INBOX}"], {"by_uid": 3}),
    Planted(
        "save date altered", [f"UPDATE by_uid SET saved_ms = 1 WHERE uid = 2 AND mailbox = {INBOX}"], {"by_uid": 1}
    ),
    Planted("save dates lost", [f"UPDATE by_uid SET saved_ms = NULL WHERE mailbox = {INBOX}"], {"by_uid": 3}),
    Planted("GUID altered", [f"UPDATE by_uid SET guid = randomblob(16) WHERE mailbox = {WORK}"], {"by_uid": 1}),
    Planted("sum altered", [f"UPDATE by_uid SET fingerprint = zeroblob(16) WHERE mailbox = {INBOX}"], {"by_uid": 3}),
    Planted("sum garbled", [f"UPDATE by_uid SET fingerprint = 'x' WHERE mailbox = {WORK}"], {"by_uid": 1}),
    Planted("UID altered", [f"UPDATE by_uid SET uid = 9 WHERE uid = 2 AND mailbox = {INBOX}"], {"by_uid": 2}),
    Planted("UID no number", [f"UPDATE by_uid SET uid = 'x' WHERE uid = 2 AND mailbox = {INBOX}"], {"by_uid": 2}),
    Planted(
        "row added",
        [f"INSERT INTO by_uid {INTO} SELECT {WORK}, {ROW} FROM by_uid WHERE uid = 4 AND mailbox = {INBOX}"],
        {"by_uid": 1},
    ),
    Planted(
        "message added",
        [
            "INSERT INTO by_uid SELECT "
            + WORK
            + ", 7, origin, seq, change, x'"
            + "99" * 16
            + "', claim_origin, claim_seq,"
            " modseq, flags, 1, 1, content_hash, fingerprint, also, saved_ms"
            f" FROM by_uid WHERE uid = 4 AND mailbox = {INBOX}",
            f"INSERT INTO by_guid VALUES (x'{'99' * 16}', {WORK}, 7, 'dc1.x', 1, 0)",
        ],
        {"by_uid": 1, "by_guid": 1},
    ),
    Planted(
        "mailbox added",
        [f"INSERT INTO by_uid {INTO} SELECT randomblob(16), {ROW} FROM by_uid WHERE uid = 4 AND mailbox = {INBOX}"],
        {"by_uid": 1},
    ),
    Planted(
        "body named wrongly", [f"UPDATE by_uid SET content_hash = randomblob(32) WHERE mailbox = {WORK}"], {"by_uid": 1}
    ),
    Planted("pointer deleted", [f"DELETE FROM by_guid WHERE uid = 2 AND mailbox = {INBOX}"], {"by_guid": 1}),
    Planted("pointer bent", [f"UPDATE by_guid SET uid = 3 WHERE uid = 2 AND mailbox = {INBOX}"], {"by_guid": 1}),
    Planted("placement bent", [f"UPDATE by_guid SET seq = seq + 1 WHERE mailbox = {WORK}"], {"by_guid": 1}),
    Planted(
        "pointer added", [f"INSERT INTO by_guid VALUES (randomblob(16), {WORK}, 1, 'dc1.x', 1, 0)"], {"by_guid": 1}
    ),
    Planted("pointers gone", ["DELETE FROM by_guid"], {"by_guid": 4}),
    Planted("messages counted wrongly", [f"UPDATE chain SET messages = 7 WHERE id = {INBOX}"], {"chain": 1}),
    Planted("unseen counted wrongly", [f"UPDATE chain SET unseen = unseen + 1 WHERE id = {INBOX}"], {"chain": 1}),
    Planted("size counted wrongly", [f"UPDATE chain SET size_bytes = 0 WHERE id = {INBOX}"], {"chain": 1}),
    Planted("fingerprint wrong", [f"UPDATE chain SET fingerprint = zeroblob(16) WHERE id = {INBOX}"], {"chain": 1}),
    Planted("UIDNEXT low", [f"UPDATE chain SET uidnext = 2 WHERE id = {INBOX}"], {"chain": 1}),
    Planted("UIDNEXT high", [f"UPDATE chain SET uidnext = 200 WHERE id = {INBOX}"], {"chain": 1}),
    Planted("MODSEQ wrong", [f"UPDATE chain SET highestmodseq = 1 WHERE id = {INBOX}"], {"chain": 1}),
    Planted("context wrong", [f"UPDATE chain SET context = x'80' WHERE id = {INBOX}"], {"chain": 1}),
    Planted("context garbled", [f"UPDATE chain SET context = x'c1' WHERE id = {INBOX}"], {"chain": 1}),
    Planted("context no map", [f"UPDATE chain SET context = x'01' WHERE id = {INBOX}"], {"chain": 1}),
    Planted("head wrong", [f"UPDATE chain SET head_seq = 2 WHERE id = {INBOX}"], {"chain": 1}),
    Planted("head gone", [f"UPDATE chain SET head_seq = NULL, head_origin = NULL WHERE id = {INBOX}"], {"chain": 1}),
    Planted("kind wrong", [f"UPDATE chain SET uidvalidity = 0 WHERE id = {INBOX}"], {"chain": 1}),
    Planted("user wrong", [f"UPDATE chain SET user = 'eve' WHERE id = {WORK}"], {"chain": 1}),
    Planted("chain deleted", [f"DELETE FROM chain WHERE id = {INBOX}"], {"chain": 1}),
    Planted("tree's chain deleted", [f"DELETE FROM chain WHERE id = {TREE}"], {"chain": 1}),
    Planted("fingerprint of a tree wrong", [f"UPDATE chain SET fingerprint = x'00' WHERE id = {TREE}"], {"chain": 1}),
    Planted("history wrong", [f"UPDATE chain SET history = zeroblob(16) WHERE id = {INBOX}"], {"chain": 1}),
    Planted("history lost", [f"UPDATE chain SET history = x'' WHERE id = {TREE}"], {"chain": 1}),
    Planted(
        "chain added",
        ["INSERT INTO chain VALUES (zeroblob(16),'alice', 7, 1, 0, NULL, NULL, x'80', 0, 0, 0, zeroblob(16), 0, x'')"],
        {"chain": 1},
    ),
    Planted("folder deleted", ["DELETE FROM folder WHERE name = 'Work'"], {"folder": 1}),
    Planted("folder renamed", ["UPDATE folder SET name = 'Play' WHERE name = 'Work'"], {"folder": 1}),
    Planted("folder gone", ["UPDATE folder SET deleted = 1 WHERE name = 'Work'"], {"folder": 1}),
    Planted("UIDVALIDITY wrong", ["UPDATE folder SET uidvalidity = 5 WHERE name = 'Work'"], {"folder": 1}),
    Planted(
        "folder added", ["INSERT INTO folder VALUES (randomblob(16), 'alice', 'New', 5, 0, 1, 'a')"], {"folder": 1}
    ),
    Planted("user added", ["INSERT INTO folder VALUES (randomblob(16), 'eve', 'New', 5, 0, 1, 'a')"], {"folder": 1}),
    Planted("subscription deleted", ["DELETE FROM subscription"], {"subscription": 1}),
    Planted("subscription cleared", ["UPDATE subscription SET subscribed = 0"], {"subscription": 1}),
    Planted("subscription added", ["INSERT INTO subscription VALUES ('alice', 'x', 1, 1, 'dc1')"], {"subscription": 1}),
    Planted("subscriber added", ["INSERT INTO subscription VALUES ('eve', 'x', 1, 1, 'dc1')"], {"subscription": 1}),
    Planted("annotation deleted", ["DELETE FROM annotation WHERE mailbox_id = x''"], {"annotation": 1}),
    Planted("annotation changed", ["UPDATE annotation SET value = x'00' WHERE mailbox_id != x''"], {"annotation": 1}),
    Planted(
        "annotation added",
        ["INSERT INTO annotation VALUES ('alice', x'', '/shared/x', x'00', 1, 'a')"],
        {"annotation": 1},
    ),
    Planted(
        "annotator added",
        ["INSERT INTO annotation VALUES ('eve', x'', '/shared/x', x'00', 1, 'a')"],
        {"annotation": 1},
    ),
    Planted("body deleted", [f"DELETE FROM content WHERE hash = {BODY_HASH}"], {"content": 1}),
    Planted(
        "much at once",
        [
            f"DELETE FROM by_uid WHERE uid = 2 AND mailbox = {INBOX}",
            f"UPDATE chain SET messages = 7 WHERE id = {INBOX}",
            f"DELETE FROM by_guid WHERE mailbox = {WORK}",
            "UPDATE folder SET name = 'Play' WHERE name = 'Work'",
        ],
        {"by_uid": 1, "chain": 1, "by_guid": 1, "folder": 1},
    ),
]


MAILBOX_DAMAGES = {
    "row missing": f"DELETE FROM by_uid WHERE uid = 2 AND mailbox = {INBOX}",
    "flags changed": f"UPDATE by_uid SET flags = x'80' WHERE uid = 2 AND mailbox = {INBOX}",
    "row unreadable": f"UPDATE by_uid SET flags = x'c1' WHERE uid = 2 AND mailbox = {INBOX}",
    "numbers changed": f"UPDATE chain SET uidnext = uidnext + 7 WHERE id = {INBOX}",
    "fingerprint changed": f"UPDATE chain SET fingerprint = zeroblob(16) WHERE id = {INBOX}",
}


async def fill(nodes: Cluster) -> None:
    """Put UIDs 2, 3 and 4 into alice's INBOX by entries of two masters, and one message into Work."""
    one, other = nodes["dc1"], nodes["dc2"]
    for number in range(3):
        await one.save(f"text {number}")
    await one.mail.create_folder(USER, "Work")
    await one.mail.subscribe(USER, "Work", subscribed=True)
    for folder in (None, await one.mail.folder(USER, "Work")):
        await one.mail.annotate(USER, folder, {"/private/comment": b"x"})
    await other.flag(2, 3, added=["\\Seen", "$Forwarded"])
    await other.expunge(1)
    nodes.isolate("dc2")
    await nodes.linked(["dc1"], ["dc2"])
    await one.save("one side")
    await other.flag(3, added=["\\Flagged"])
    await other.save("at work", "Work")
    nodes.rejoin("dc2")
    await nodes.linked()
    await nodes.converged()


async def alter_history(node: Node, chain: bytes) -> None:
    """Alter the history of the node's head, on disk and in memory."""

    def alter(tx: Transaction) -> None:
        known = tx.chain(chain)
        assert known is not None
        known = tx.chain_to_change(chain, known.user, known.uidvalidity)
        known.history = node.sid.encode().ljust(16)

    await node.store.write(alter)
