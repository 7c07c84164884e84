"""Repair plans, as `replicator apply` reads them and tells what came of them."""
