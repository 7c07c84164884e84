"""Mastership: finds the node that numbers a mailbox's changes, and moves that role between nodes (design section 5).

Used by all code that brings a change to its master; of the other rooms it uses only `links`.
"""
