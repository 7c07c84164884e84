"""Tests of expunged mail and how long it is kept."""
