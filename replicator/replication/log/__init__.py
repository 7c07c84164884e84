"""The log on its way between two nodes: sender and receiver on each link, and what keeps an entry from disk.

The coordinator runs it; convergence uses what it knows of peers.
"""
