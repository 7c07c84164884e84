"""Reading for stories (`replicator.replication.stories`): a walk down a history in the log, and queries besides it."""
