"""Convergence of nodes that show different things: forks, state transfer, SYNC, and entries that wait too long.

The coordinator and the tasks run this package (design sections 3 and 7).
"""
