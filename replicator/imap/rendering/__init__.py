"""Parts of a message as IMAP shows them: ENVELOPE, BODYSTRUCTURE, sections, decoded text. Pure.

Used by FETCH, and by SEARCH for what it must read.
"""
