"""Evaluation of SEARCH: by the mailbox view as far as possible, then by reading messages.

Used by the handlers of SEARCH, and by all code that parses large messages.
"""
