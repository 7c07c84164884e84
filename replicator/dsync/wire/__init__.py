"""The language of dsync, version 3.5, without I/O: bytes in, items out, and back."""
