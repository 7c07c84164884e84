"""Tests of the HTTP door: the server, the API, and long tasks."""
