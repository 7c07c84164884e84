"""Nodes: commands that run them, show their state, and make a running one do something now."""
