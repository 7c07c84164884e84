"""Aliases and catch-all addresses: `table` reads their file, `recipients` says whom an address reaches."""
