"""The mail of this node's users as dsync needs it, and the memory of earlier syncs."""
