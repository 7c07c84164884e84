"""Masters of mailboxes, as the nodes know them."""

from replicator.mail.mailstore import INBOX
from replicator.store.db.queries import MailboxKey
from tests.replication.cluster import USER, Cluster, Node


async def key_of(node: Node, name: str = INBOX) -> MailboxKey:
    folder = await node.mail.folder(USER, name)
    return MailboxKey(USER, folder.mailbox_id, folder.uidvalidity)


async def master(nodes: Cluster, name: str = INBOX) -> str:
    """Return the one master that is named by all nodes that know one."""
    known = {node.coordinator.mastership.known_master(await key_of(node, name)) for node in nodes.all()}
    (sid,) = known - {None}
    assert sid is not None
    return sid
