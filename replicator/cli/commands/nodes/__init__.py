"""Nodes: commands that set them up, run them, and make a running one do something now."""
