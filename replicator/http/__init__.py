"""The HTTP door: health, metrics, and the JSON API that the command line uses.

`message` defines requests, responses and problems as values; `routing` finds the handler from a request's head alone,
and `access` decides whether the listener lets the client ask for that; `api` is the table of routes and their handlers;
`openapi` describes the routes to programs, by the data classes of other rooms and those of `documents`;
`server` is the only module that touches a stream. Rooms of routes: `mail`, `users`, `tasks`, and `page` for people.
"""
