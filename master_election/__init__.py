"""Choice of the node that numbers a mailbox's changes: link states, the root, and the masters that the root names.

The package consists of state machines without I/O: they take events and the time, and return messages and decisions as
plain values. Elections serve speed, never safety: no promise may depend on anything here.
"""
