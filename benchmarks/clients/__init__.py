"""Clients of a node by LMTP and IMAP, and the mails that they send; they know addresses only.

Used by all other benchmarks, and by tests with real processes.
"""
