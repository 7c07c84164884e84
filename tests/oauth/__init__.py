"""Access tokens: what is accepted of whom, and where the keys come from."""
