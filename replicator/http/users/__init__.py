"""Users over HTTP: the cluster's table, and the removal of former users' mail."""
