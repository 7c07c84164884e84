"""Conversion between octets and commands or responses: framing, the grammar, typed commands, refusals.

All of the IMAP door uses it; it knows nothing of sessions.
"""
