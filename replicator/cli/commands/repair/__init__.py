"""Damage, and differences between nodes: commands that find and mend them, and write what it takes to find them."""
