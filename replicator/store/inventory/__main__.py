"""The process that writes an inventory: `python -m replicator.store.inventory`, started by a node (`conversation`).

It ends when its standard input does, so it never outlives its node, however that ends. Unless the node has sent KEEP,
it then removes what it has written. It therefore ignores the signals by which a terminal or a service manager ends all
processes of a node at once.
"""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

from replicator.runtime.objects import ObjectStoreError
from replicator.store.db.damage import REMEDY, is_damage
from replicator.store.db.schema import open_reader
from replicator.store.inventory.conversation import (
    KEEP,
    REMOVAL_S,
    Event,
    Failed,
    Heads,
    MailboxName,
    line_of,
    masters_of,
    order_of,
)
from replicator.store.inventory.errors import TargetError
from replicator.store.inventory.targets import Target, target_of, why

NICENESS = 10  # the node's clients come first
MISSING = (
    "pyarrow is not installed where the node runs: run `pip install 'mail-replicator[inventory]'` there; the"
    " node need not be restarted"
)


def main() -> None:
    """Write the inventory that the node orders."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    gc.disable()  # rows make no cycles, and searching for cycles takes a third of the time
    node = _Node()
    order = order_of(node.lines.get())
    try:
        from replicator.store.inventory.writing import InventoryWriter  # noqa: PLC0415  may be missing: see MISSING
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        _tell(Failed(MISSING))
        return
    try:
        node.target = target = target_of(order.to, order.endpoint, Path(order.scratch))
        with closing(open_reader(Path(order.database))) as connection:
            target.prepare(overwrite=order.overwrite)
            InventoryWriter(connection, target, _tell, node.masters).write(order)
        node.lines.get()  # wait for KEEP or the end of input
    except (OSError, ObjectStoreError, TargetError) as error:
        _tell(Failed(why(order.to, error)))
    except sqlite3.Error as error:
        advice = f"; an inventory of it would be incomplete: {REMEDY}" if is_damage(error) else ""
        _tell(Failed(f"{order.database}: {error}{advice}"))


class _Node:
    """The node as seen by this process: its `lines`, and the cleanup when they end without KEEP."""

    def __init__(self) -> None:
        self.lines: SimpleQueue[bytes] = SimpleQueue()
        self.target: Target | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def masters(self, names: Sequence[MailboxName]) -> Sequence[str | None]:
        """Ask the node for the masters of mailboxes and trees."""
        _tell(Heads.of(names))
        return masters_of(self.lines.get())

    def _listen(self) -> None:
        with open(sys.stdin.fileno(), "rb", closefd=False) as told:
            for line in told:
                self.lines.put(line)
                if line == KEEP:
                    return
        self._give_up()  # the node has ended or has cancelled the inventory

    def _give_up(self) -> None:
        overdue = threading.Timer(REMOVAL_S, os._exit, (1,))
        overdue.daemon = True
        overdue.start()
        if self.target is not None:
            self.target.discard()
        os._exit(1)


def _tell(event: Event) -> None:
    sys.stdout.buffer.write(line_of(event))
    sys.stdout.buffer.flush()


main()
