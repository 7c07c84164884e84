"""The mail of one user: commands that ask a running node for it."""
