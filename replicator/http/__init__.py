"""The HTTP door: health, metrics, and the JSON API that the command line uses.

`message` are requests, responses and problems as values; `routing` decides, from a request's head alone, which
handler gets it; `api` is the table of routes and their handlers; `server` is the only module that touches a stream.
It serves loopback only: whoever can reach it may do everything, until it has tokens.
"""
