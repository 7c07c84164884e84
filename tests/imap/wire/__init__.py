"""Commands as they are parsed and responses as they are printed."""
