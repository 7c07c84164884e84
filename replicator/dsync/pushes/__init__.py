"""Syncs that the node begins: which users are due, and how a Dovecot is asked."""
