"""Tasks over HTTP: routes that start, watch and cancel tasks, and the checks of what callers ask of them."""
