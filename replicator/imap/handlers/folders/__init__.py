"""Handlers of commands on folders: their names, their counters, and what is known of them besides."""
