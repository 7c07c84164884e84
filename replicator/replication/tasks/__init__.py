"""What an operator asks of a running node and what takes long: check, scrub, resync, apply, undelete, inventory.

`runner` runs one at a time; the HTTP door reaches it through `replicator.tasks`.
"""
