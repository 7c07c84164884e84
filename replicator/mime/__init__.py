"""What stands where in a message (RFC 5322, RFC 2045, RFC 2046): by offsets, as the octets are promised as they came.

Pure functions of bytes. The IMAP door answers from it, the store takes messages apart by it.
"""
