"""The JSON API of a node, as the command line uses it: `client` has the requests, `connection` makes them."""
