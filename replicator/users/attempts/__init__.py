"""Attempts to log in: `throttle` delays them after failures, `turns` has them come in order, `queue` does both."""
