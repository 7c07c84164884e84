"""Certificates, tokens and passwords: commands that write files, and ask no node."""
