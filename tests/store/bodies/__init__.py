"""Tests of bodies: intake, recipes, references to attachments, and removal."""
