"""The comparison of inventories, in stages: pure functions from DataFrames to DataFrames, whose columns `schemas` has.

They restate the rules of `resync`, and tests hold both to the same answers. A function that restates another one names
it, and is named there after "On Spark". In the order of use: `sums` finds mailboxes that are not equal, `mailboxes`
classifies them, `versions` gathers their messages, `merging` joins them (by `pairs` and `new_uids`), `messages`
classifies the differences. `projections` compares a node with itself.

Used by `audit` alone; reads and writes nothing.
"""
