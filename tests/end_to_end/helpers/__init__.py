"""Clients that check what they are told, certificates, and networks; used by the tests in the other folders."""
