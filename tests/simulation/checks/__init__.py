"""Promises that a cluster must keep, checked when a node answers, when it comes back, and at the end.

`world` calls them; they read the databases and the disks of nodes, and the records.
"""
