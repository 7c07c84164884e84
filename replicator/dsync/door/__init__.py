"""The door at which Dovecots begin syncs: doveadm's protocol up to there, and the connections."""
