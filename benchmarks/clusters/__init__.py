"""Clusters on this machine: starting, querying and ending nodes, degrading the lines between them, preparing databases.

Used by `figures` and `demo`, and by tests with real processes.
"""
