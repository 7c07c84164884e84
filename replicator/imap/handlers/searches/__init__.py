"""Handlers of SEARCH, SORT and THREAD, and of updates of their results."""
