"""Parsing of messages (RFC 5322, RFC 2045, RFC 2046) by offsets, because the octets must be returned unchanged.

Pure functions of bytes. The IMAP door answers from the result, and the store uses it to cut out attachments.
"""
