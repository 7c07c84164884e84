"""Inventories: a node's state as Parquet for batch jobs, written by a separate process (design section 7).

The node starts `python -m replicator.store.inventory` and talks to it over pipes (`conversation`), so that neither the
row loop nor pyarrow takes time from the node's event loop. The node itself loads nothing that imports pyarrow. The
format is in docs/inventory.md.
"""
