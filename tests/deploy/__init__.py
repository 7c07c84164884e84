"""`deploy/` and what is built of it: wheel, Debian package, units, containers."""
