"""Tests of the attachment store: its names, its durability, its sweep, and processes that are killed."""
