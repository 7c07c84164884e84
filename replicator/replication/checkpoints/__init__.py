"""Checkpoints of what this node shows, and the end of the log that they make superfluous (design section 6).

The coordinator runs it; forks and checks read checkpoints to replay what the log no longer has.
"""
