"""Loads that pairs are given, a module for each kind of load. They know pairs by their interface only."""
