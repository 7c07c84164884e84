"""Who numbers a mailbox's changes: link states, the root, and the masters that it gives out.

State machines without I/O: events and the time in, messages and decisions out, as plain values. Elections are for
speed, never for safety: nothing here may be needed for a promise to hold.
"""
