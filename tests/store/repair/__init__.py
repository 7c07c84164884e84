"""Tests of checks and repairs, and of reading damaged databases."""
