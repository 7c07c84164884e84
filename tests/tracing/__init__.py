"""`replicator.tracing`: what observers of links tell, and to whom."""
