"""Let nodes change mail apart from each other, and rejoin."""

from tests.replication.cluster import USER, Cluster


async def cut_off_dc1(nodes: Cluster) -> None:
    """Cut dc1 off from the other nodes."""
    nodes.isolate("dc1")
    await nodes.linked(["dc1"], [sid for sid in nodes.nodes if sid != "dc1"])


async def rejoin_dc1(nodes: Cluster) -> None:
    nodes.rejoin("dc1")
    await nodes.linked()


async def fork(nodes: Cluster) -> None:
    """Fork INBOX after UIDs 1 to 5: dc1 expunges 1, dc2 expunges 2 and flags 3, and each saves its own UID 6."""
    for number in range(5):
        await nodes["dc1"].save(f"common {number}")
    await nodes.converged()
    await cut_off_dc1(nodes)
    await nodes["dc1"].expunge(1)
    await nodes["dc1"].save("at dc1")
    await nodes["dc2"].expunge(2)
    await nodes["dc2"].flag(3)
    await nodes["dc2"].save("at dc2")
    await nodes["dc2"].mail.create_folder(USER, "Work")
    await nodes["dc2"].save("at work", "Work")
