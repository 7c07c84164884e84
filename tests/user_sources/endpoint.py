"""A program that knows users, behind real HTTP on loopback."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from replicator.config import EndpointConfig

PEOPLE = {"alice": "secret", "bob": "hidden"}


class Endpoint(ThreadingHTTPServer):
    """A server on loopback. `says`: what it answers in place of the truth, as (status, body); `odd`: about users."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.people = dict(PEOPLE)
        self.questions: list[dict[str, object]] = []
        self.tokens: list[str | None] = []
        self.paths: list[str] = []
        self.says: tuple[int, bytes] | None = None
        self.odd: dict[object, bytes] = {}

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients who have gone."""

    def answer(self, question: dict[str, object]) -> dict[str, object]:
        user = str(question["user"]).removesuffix("@example.org")
        if question["request"] == "check":
            return {"right": self.people.get(user) == question["password"]}
        if user not in self.people:
            return {"user": None}
        return {"user": user, "disabled": user == "bob", "quota": "1G" if user == "alice" else None}


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.questions.append(question)
        self.server.tokens.append(self.headers["Authorization"])
        self.server.paths.append(self.path)
        odd = self.server.odd.get(question["user"])
        status, body = self.server.says or (200, odd or json.dumps(self.server.answer(question)).encode())
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    with Endpoint() as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def config_of(server: Endpoint, scheme: str = "http", host: str = "127.0.0.1") -> EndpointConfig:
    return EndpointConfig(f"{scheme}://{host}:{server.server_port}/users")
