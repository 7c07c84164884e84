"""The remote side of a sync, step by step, over a connection to the master and the mail of one user."""
