"""Which node numbers a mailbox's changes, and how that passes from one node to another (design section 5).

Used by whatever brings a change to its master; knows links alone.
"""
