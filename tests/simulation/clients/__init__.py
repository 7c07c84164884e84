"""Clients of a simulated cluster: mail programs that change mail, and IMAP sessions that watch a mailbox.

Seeds draw them, and scenarios use readers.
"""
