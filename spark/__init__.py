"""Comparing whole nodes in bulk: inventories in, DataFrames of what differs and what it becomes out (design section 7).

Pure functions from DataFrames to DataFrames over Spark's own expressions: no row passes through Python. They state the
rules of `resync` again, and tests hold both to the same answers. In the order of use: `inventories` reads, `sums` finds
mailboxes that are not equal, `mailboxes` says in which way, `versions` brings their messages together, `merging` joins
them, `messages` says what differs. `projections` compares a node with itself.
"""
