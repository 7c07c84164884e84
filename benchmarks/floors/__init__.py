"""Physical floors: what this machine can do at best, measured in the same run as the figures beside them.

Used by `figures` alone; no node runs for it.
"""
