"""Monitoring: commands that look at running nodes, and change nothing."""
