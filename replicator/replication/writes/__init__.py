"""A client's change on its way to the mailbox's master and to enough disks (design sections 3 and 4).

Used by the mail store, and by tasks that make changes themselves.
"""
