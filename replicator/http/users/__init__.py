"""Users over HTTP: the cluster's table, log-ins (also for proxies that ask), and the removal of former users' mail."""
