"""`make bench-spark`: cost and correctness of comparing whole nodes, at sizes that a test cannot have.

Inventories of millions of rows are generated, with differences of every kind planted in them; the comparison is run on
them stage by stage, all in the same process, and its results are checked against the planted differences.
"""
