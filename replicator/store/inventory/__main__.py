"""The process that writes an inventory: `python -m replicator.store.inventory`, started by a node (`conversation`).

It ends when its standard input does, so it never outlives its node, however that ends.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

from replicator.objects import ObjectStoreError
from replicator.store.damage import REMEDY, is_damage
from replicator.store.inventory.conversation import (
    Event,
    Failed,
    Heads,
    MailboxName,
    line_of,
    masters_of,
    order_of,
)
from replicator.store.inventory.targets import TargetError, target_of, why
from replicator.store.schema import open_reader

NICENESS = 10  # the node's clients come first
MISSING = (
    "pyarrow is not installed where the node runs: `pip install 'mail-replicator[inventory]'` there; it need not be"
    " started again"
)


def main() -> None:
    """Write what is ordered."""
    os.nice(NICENESS)
    gc.disable()  # rows make no cycles, and looking for some takes a third of the time
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    order = order_of(lines.get())

    def masters(names: Sequence[MailboxName]) -> Sequence[str | None]:
        _tell(Heads.of(names))
        return masters_of(lines.get())

    try:
        from replicator.store.inventory.writing import Inventory  # noqa: PLC0415  may be missing: see MISSING
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        _tell(Failed(MISSING))
        return
    try:
        target = target_of(order.to, order.endpoint, Path(order.scratch))
        target.prepare(overwrite=order.overwrite)
        with closing(open_reader(Path(order.database))) as connection:
            Inventory(connection, target, _tell, masters).write(order)
    except (OSError, ObjectStoreError, TargetError) as error:
        _tell(Failed(why(order.to, error)))
    except sqlite3.Error as error:
        advice = f"; what it gives is not all that there is: {REMEDY}" if is_damage(error) else ""
        _tell(Failed(f"{order.database}: {error}{advice}"))


def _listen(lines: SimpleQueue[bytes]) -> None:
    with open(sys.stdin.fileno(), "rb", closefd=False) as told:
        for line in told:
            lines.put(line)
    os._exit(1)  # the node has ended, in whatever way


def _tell(event: Event) -> None:
    sys.stdout.buffer.write(line_of(event))
    sys.stdout.buffer.flush()


main()
