"""Repair plans, as `replicator apply` reads them, and the report of the result."""
