"""Handlers of IMAP commands, one module for each group; they act on the session and the mail store.

`dispatch` calls them. Here are those of the session itself: log-in, ENABLE, IDLE, and what a client hears unasked.
"""
