"""Tests of the LMTP door: the protocol machine without I/O, the server, and trace headers."""
