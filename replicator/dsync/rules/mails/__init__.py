"""Mails of one mailbox: which ones this side expunges, changes, moves and fetches, and what it tells of its own.

`merging` and `backup` put the other rules together to a plan, whose steps `conversation/` carries out.
"""
