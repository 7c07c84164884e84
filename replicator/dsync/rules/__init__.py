"""Decisions of a sync, as pure functions. Each side decides alone, by what both know, and both decide alike.

`mails/` has those about the mails of one mailbox.
"""
