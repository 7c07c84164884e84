"""Certificates, tokens, users and their log-ins."""
