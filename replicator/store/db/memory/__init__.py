"""The part of the database that a node keeps in memory.

The event loop alone changes it, where the writer publishes a commit.
"""
