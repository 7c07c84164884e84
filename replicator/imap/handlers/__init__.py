"""Handlers of IMAP commands, one module for each group; they act on the session and the mail store.

`dispatch` calls them.
"""
