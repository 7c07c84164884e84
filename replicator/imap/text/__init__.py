"""Text of messages as people read it, and how texts are compared. Pure functions, which know nothing of IMAP's syntax.

`transfer_encodings`, `decoding` (charsets, encoded words), `html_text` and `address_lists` read it; `casemap` compares.
Used by the rooms that render, match and order messages.
"""
