"""Long-running tasks that an operator starts on a running node: check, scrub, resync, apply, undelete, inventory.

`runner` runs one at a time; the HTTP door reaches it through `replicator.tasks`.
"""
