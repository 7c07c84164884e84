"""Parts of a message as IMAP shows them: ENVELOPE, BODYSTRUCTURE, sections, decoded text. Pure functions.

Used by FETCH, and by SEARCH for messages that it must read.
"""
