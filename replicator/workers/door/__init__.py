"""The inside of a door's process: `door` is its program, and `mail` the node's mail as its sessions have it."""
