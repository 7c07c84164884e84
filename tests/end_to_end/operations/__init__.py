"""Tests of repair as operators do it: `resync`, `rebuild`, and `diff` with `apply`."""
