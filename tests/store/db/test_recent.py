from replicator.store.db.rows import recent
from tests.store.harness import INBOX, WORK, guid, saving
from tests.store.memory_node import MemoryNode


def test_message_is_recent_in_one_session_only() -> None:
    node = MemoryNode("dc1.a")
    for number in (1, 2, 3):
        node.write(saving(b"text", guid(number)))
    assert recent.count(node.connection, INBOX.mailbox_id) == 3
    assert recent.claim(node.connection, INBOX.mailbox_id, 4) == 1
    assert recent.count(node.connection, INBOX.mailbox_id) == 0
    assert recent.claim(node.connection, INBOX.mailbox_id, 4) == 4
    node.write(saving(b"text", guid(4)))
    assert recent.count(node.connection, INBOX.mailbox_id) == 1
    assert recent.count(node.connection, WORK.mailbox_id) == 0


def test_session_that_saw_less_does_not_lower_the_claim() -> None:
    node = MemoryNode("dc1.a")
    for number in (1, 2):
        node.write(saving(b"text", guid(number)))
    assert recent.claim(node.connection, INBOX.mailbox_id, 3) == 1
    assert recent.claim(node.connection, INBOX.mailbox_id, 2) == 3
    assert recent.claim(node.connection, INBOX.mailbox_id, 3) == 3
