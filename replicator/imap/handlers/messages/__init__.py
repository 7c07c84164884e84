"""Handlers of commands that read, add and change messages."""
