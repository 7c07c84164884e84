"""Parts of a message as IMAP shows them: ENVELOPE, BODYSTRUCTURE, sections, previews, THREADID. Pure functions.

Used by FETCH, and by SEARCH, SORT and THREAD for messages that they must read. Values that are kept so that messages
need not be read again are made here, too: `outline`, `search_text`, `header_columns`.
"""
