"""Bulk comparison of whole nodes: turn inventories into DataFrames of differences and their outcome (design section 7).

Its rooms, in the order of use: `job` is the command and Spark itself, `reading` checks and reads the inventories,
`comparison` finds the differences, `audit` runs all of it and writes the plan, and `report` shows the counts. Between
them travel DataFrames alone, over Spark's own expressions: no row passes through Python. `schemas` declares their
columns.
"""
