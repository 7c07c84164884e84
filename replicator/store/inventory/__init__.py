"""A node's state as Parquet, for batches: written by a process of its own (design section 7, docs/inventory.md).

The node starts `python -m replicator.store.inventory` and talks with it over pipes (`conversation`), so that neither
the row loop nor pyarrow takes time from the node's event loop. Nothing that the node itself loads imports pyarrow.
"""
