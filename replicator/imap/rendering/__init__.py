"""Parts of a message as IMAP shows them: ENVELOPE, BODYSTRUCTURE, sections, previews, THREADID. Pure functions.

Used by FETCH, and by SEARCH, SORT and THREAD for messages that they must read. What is kept so that they need not read
again is made here, too: `outline`, `search_text`, `header_columns`.
"""
