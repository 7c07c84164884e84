"""Tests of words in the lines of a passwd-file."""
