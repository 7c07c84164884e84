"""`make bench-spark`: what comparing whole nodes costs at sizes that a test cannot have, and whether it finds all.

Inventories of millions of rows are made up, with differences of every kind planted in them; the comparison is run on
them stage by stage, each in the same process, and what it says is held against what was planted.
"""
