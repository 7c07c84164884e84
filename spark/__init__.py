"""Bulk comparison of whole nodes: turn inventories into DataFrames of differences and their outcome (design section 7).

The package consists of pure functions from DataFrames to DataFrames over Spark's own expressions: no row passes through
Python. They restate the rules of `resync`, and tests hold both to the same answers. In the order of use: `inventories`
reads, `sums` finds mailboxes that are not equal, `mailboxes` classifies them, `versions` gathers their messages,
`merging` joins them, `messages` classifies the differences. `projections` compares a node with itself.
"""
