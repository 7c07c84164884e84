"""Scenarios of large messages and their attachments, one a module."""
