"""Tests of the log: numbering, receiving, branches, gaps and removal of entries."""
