"""Checkpoints of this node's state, and truncation of the log entries that they replace (design section 6).

The coordinator runs this package; fork merges and checks read checkpoints to replay what has left the log.
"""
