"""Which messages a SEARCH finds: by the view as far as that goes, then by reading them.

Used by the handlers of SEARCH, and by whatever parses large messages.
"""
