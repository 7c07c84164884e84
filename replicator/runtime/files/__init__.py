"""Files that a node makes: their modes, changes to small ones that people edit too, and free space of the disk."""
