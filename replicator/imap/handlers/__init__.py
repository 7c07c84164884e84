"""What each group of commands does with the session and the mail store.

`dispatch` calls them.
"""
