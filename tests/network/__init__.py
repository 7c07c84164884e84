"""Tests of connections: listening, certificates, headers of proxies."""
