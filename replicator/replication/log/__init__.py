"""Shipping of the log between two nodes: sender and receiver of each link, and obstacles that keep entries from disk.

The coordinator runs it; convergence uses its knowledge of peers.
"""
