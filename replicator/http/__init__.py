"""The HTTP door: health, metrics, and the JSON API that the command line uses.

`message` defines requests, responses and problems as values; `routing` finds the handler from a request's head alone;
`api` is the table of routes and their handlers; `server` is the only module that touches a stream. The door serves
loopback only, because it has no authentication tokens yet: any client that can connect may do everything.
"""
