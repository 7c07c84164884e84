"""The page of the HTTP API: what each route answers, told by a real node. REWRITE_DOCS=1 writes the page anew."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, make_dataclass, replace
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from types import NoneType
from typing import Any, TypeAlias

import pytest
import trio

from replicator.config import (
    Address,
    ClusterConfig,
    Config,
    ListenConfig,
    PeerConfig,
    SocketPath,
    UserSource,
    default_config,
)
from replicator.http.access import needed_role
from replicator.http.api import ROUTES
from replicator.http.message import JSON_TYPE, PROBLEM_TYPE
from replicator.http.openapi import Schemas, openapi_document
from replicator.http.parameters import PARAMETERS
from replicator.http.routing import Route
from replicator.http.server import BODY_BYTES_MAX, HANDLER_S, JSON_BYTES_MAX
from replicator.http.services import HttpServices
from replicator.tasks import CheckOptions
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.http.api_calls import GROUPS, HASH, READY, UIDVALIDITY, Call, Shown

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"
DIRECTORY = "/var/lib/mail-replicator"
"""What the page shows in place of the test's directory."""

LOOK = Shown("GET", "/api/v1/users/{user}/folders/{name}/chosen", (
    Call("/api/v1/users/alice/folders/INBOX/chosen", 200, ""),
))  # fmt: skip

_JSON_BLOCK = re.compile(r"```json\n(.*?)```", re.DOTALL)
_FLAT_LIST = re.compile(r"\[\s+([^][{}]+?)\s+\]")
_IN_PATH = re.compile(r"\{(\w+)\}")

INTRODUCTION = f"""\
# HTTP API

What a node answers on its `listen.http` address, and at its own socket, `http.sock` in `node.data`, which only the
node's user and root can open. `replicator` asks the same, and `GET /api/v1/openapi.json` tells programs what this page
says. The page is generated: the routes are those of `replicator/http/api.py`, and the answers come from a node of two
(`tests/http/test_http_api_page.py`).

```sh
curl --unix-socket dc1/http.sock http://localhost/api/v1/status
curl --header "Authorization: Bearer $TOKEN" https://dc1.example.org:1080/api/v1/status
```

**Roles.** Where the listener asks for [tokens](operations.md#tokens), each request needs one of the role that is named
below, or of the role `operate`, which is good for all. Without tokens the listener answers to loopback names and
addresses only, and everybody on the machine may do everything; so may who opens the socket. Web pages of other sites
get nothing but what is open to everybody.

**Names.** A folder's name in a path is one segment: `Archive%2F2026`. All is UTF-8, percent-encoded.

**Bodies.** A request's body must have the `Content-Type` that is named. It may have {BODY_BYTES_MAX >> 20} MiB,
or {JSON_BYTES_MAX >> 20} MiB of JSON. HEAD is answered wherever GET is.

**Errors** are problem documents (RFC 9457, `{PROBLEM_TYPE}`): `detail` says what is wrong and what to do.

```json
PROBLEM
```

| status | stands everywhere for |
|---|---|
| 400 | the request makes no sense: a parameter is unknown or given twice, a name is impossible, the body is broken |
| 401, 403 | a token is missing or not known; its role is not enough, or a page of another site asks |
| 404, 405 | there is no such route; it has no such method |
| 408, 413, 415 | the body came too slowly, is too large, has another `Content-Type` |
| 421 | the name or the user belongs to another node or cluster |
| 503 | it cannot be done now, or took longer than {HANDLER_S:.0f} s: `detail` says if the change may have been made |
| 507 | the disk is full, or the user's quota is used up |
"""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: str


Told: TypeAlias = dict[tuple[str, Call], Answer]
"""The answers, by the method and the call."""


class OwnSocket(HTTPConnection):
    """A connection to a node's own socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


class LaterEnding:
    """The end of nodes that go on: the test ends them."""

    is_managed = False

    def begin(self, why: str) -> None:
        assert why


def nodes(directory: Path) -> list[Config]:
    sockets = {sid: SocketPath(directory / f"{sid}.sock") for sid in ("dc1", "dc2")}
    imap, lmtp = (Address("127.0.0.1", port) for port in free_ports(2))
    configs = []
    for sid, other in (("dc1", "dc2"), ("dc2", "dc1")):
        listen = ListenConfig(peer=sockets[sid])
        config = default_config(sid, directory, listen=listen, peers=(PeerConfig(other, sockets[other]),))
        users = replace(config.users, passwd_file=directory / f"{sid}.passwd", source=UserSource.CLUSTER)
        configs.append(replace(config, users=users, clusters=(ClusterConfig("mail", imap, lmtp),)))
    return configs


def ask(path: Path, route: Shown, call: Call, body_type: str | None) -> Answer:
    """Ask once, or while a task runs again. Of a stream only the head is read."""
    while True:
        connection = OwnSocket(path)
        kind = {} if body_type is None else {"Content-Type": body_type}
        connection.request(route.method, call.target, call.body or None, {**kind, **dict(call.headers)})
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        is_text = headers["content-type"] in (JSON_TYPE, PROBLEM_TYPE)
        text = response.read().decode() if is_text else ""
        connection.close()
        if not (call.until_ended and json.loads(text)["state"] == "running"):
            return Answer(response.status, headers, text)


async def answers() -> Told:
    """Make all requests, in their order, of the first of two nodes that are linked."""
    told: Told = {}
    with TemporaryDirectory(prefix="api-") as name:
        configs = nodes(Path(name))
        own = configs[0].node.data / "http.sock"

        def put(call: Call, route: Shown) -> Answer:
            placed = replace(call, body=call.body.replace(b"DIRECTORY", name.encode()))
            if str(UIDVALIDITY).encode() in call.body:
                found = ask(own, LOOK, LOOK.calls[0], None)
                uidvalidity = str(json.loads(found.body)["uidvalidity"]).encode()
                placed = replace(placed, body=placed.body.replace(str(UIDVALIDITY).encode(), uidvalidity))
            answer = ask(own, route, placed, routes[route.method, route.path].body_type)
            return replace(answer, body=answer.body.replace(name, DIRECTORY))

        async with running(configs, LaterEnding()):
            status = Shown("GET", "/api/v1/status", ())
            look = Call("/api/v1/status", 200, "")
            while '"component":["dc1","dc2"]' not in (await trio.to_thread.run_sync(put, look, status)).body:
                await trio.lowlevel.checkpoint()  # the nodes have not met yet
            for route in (*READY, *(route for group in GROUPS for route in group.routes)):
                for call in route.calls:
                    told[route.method, call] = await trio.to_thread.run_sync(put, call, route)
                    assert told[route.method, call].status == call.status, (route, told[route.method, call])
    return told


routes: dict[tuple[str, str], Route[HttpServices]] = {(route.method, route.path): route for route in ROUTES}


def role(route: Route[HttpServices]) -> str:
    if route.is_open:
        return "open to everybody"
    return f"`{needed_role(route.method, route)}`"


def first_sentences(route: Route[HttpServices]) -> str:
    handler = route.handler.func if isinstance(route.handler, partial) else route.handler
    return " ".join((handler.__doc__ or "").split())


def indented(text: str) -> str:
    """Return JSON as people read it: a list of texts or numbers is one line."""
    whole = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return _FLAT_LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", whole)


def filled(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def lines(shown: Shown, told: Told) -> Iterator[str]:
    """Yield what the page says of a route."""
    route = routes[shown.method, shown.path]
    yield from ("", f"### {route.method} {route.path}", "", filled(f"{first_sentences(route)} {shown.told}"), "")
    yield from ("| | |", "|---|---|", f"| role | {role(route)} |")
    for name in (*_IN_PATH.findall(route.path), *sorted(route.query)):
        yield f"| `{name}`{'' if name in route.query else ', in the path'} | {PARAMETERS[name]} |"
    if route.body_type is not None:
        yield f"| body, `{route.body_type}` | {shown.body} |"
    for call in shown.calls:
        yield f"| {call.status} {HTTPStatus(call.status).phrase} | {call.when} |"
    call = shown.calls[0]
    answer = told[route.method, call]
    yield from ("", "```", f"{route.method} {call.target}")
    yield from (f"{name}: {value}" for name, value in call.headers)
    if route.body_type == JSON_TYPE:
        yield from ("", call.body.decode().replace("DIRECTORY", DIRECTORY).replace(HASH, "{SHA512-CRYPT}$6$..."))
    yield "```"
    shown_headers = [f"{name.title()}: {value}" for name, value in answer.headers.items() if name.startswith("auth-")]
    if shown_headers:
        yield from ("", "```", *(re.sub(r"(Port: )\d+", r"\g<1>143", line) for line in shown_headers), "```")
    elif answer.headers["content-type"] == JSON_TYPE and not shown.is_long:
        yield from ("", "```json", indented(answer.body), "```")
    else:
        yield from ("", f"The answer is `{answer.headers['content-type']}`.")


def page(told: Told) -> str:
    problem = next(answer for (_, call), answer in told.items() if call.status == HTTPStatus.NOT_FOUND)
    parts = [INTRODUCTION.replace("PROBLEM", indented(problem.body))]
    for group in GROUPS:
        parts += ["\n".join([f"## {group.title}", *(["", filled(group.told)] if group.told else []),
                             *(line for shown in group.routes for line in lines(shown, told)), ""])]  # fmt: skip
    return "\n".join(parts)


def is_alike(one: object, other: object) -> bool:
    """Return True if both have the same members; their values may differ, and be null or empty."""
    match one, other:
        case dict(), dict():
            if not one or not other:
                return True
            return one.keys() == other.keys() and all(is_alike(one[key], other[key]) for key in one)
        case list(), list():
            return not one or not other or is_alike(one[0], other[0])
        case (dict() | list(), _) | (_, dict() | list()):
            return one is None or other is None
    return one is None or other is None or isinstance(one, int | float) == isinstance(other, int | float)


@pytest.fixture(scope="module")
def told() -> Told:
    return trio.run(answers)


def test_page_tells_what_a_node_answers(told: Told) -> None:
    made = page(told)
    if "REWRITE_DOCS" in os.environ:
        PAGE.write_text(made, "utf-8")
    kept = PAGE.read_text("utf-8")
    again = "run REWRITE_DOCS=1 .venv/bin/pytest tests/http/test_http_api_page.py"
    assert _JSON_BLOCK.sub("", kept) == _JSON_BLOCK.sub("", made), again
    for one, other in zip(_JSON_BLOCK.findall(kept), _JSON_BLOCK.findall(made), strict=True):
        assert is_alike(json.loads(one), json.loads(other)), again


def conforms(value: object, schema: Mapping[str, object], schemas: Mapping[str, Mapping[str, object]]) -> bool:
    """Return True if JSON is as its schema says. Raises ValueError if the schema says what is not looked at."""
    match schema:
        case {"$ref": str(name)}:
            return conforms(value, schemas[name.removeprefix("#/components/schemas/")], schemas)
        case {"anyOf": list(some)}:
            return any(conforms(value, each, schemas) for each in some)
        case {"enum": list(some)}:
            return value in some
        case {"type": "array", "prefixItems": list(kinds), "items": False}:
            return (
                isinstance(value, list)
                and len(value) == len(kinds)
                and all(conforms(one, kind, schemas) for one, kind in zip(value, kinds, strict=True))
            )
        case {"type": "array", "items": dict(kind)}:
            return isinstance(value, list) and all(conforms(one, kind, schemas) for one in value)
        case {"type": "object", "properties": dict(members), "required": list(names), "additionalProperties": more}:
            assert more is False
            if not isinstance(value, dict) or not set(names) <= value.keys() <= members.keys():
                return False
            return all(conforms(one, members[name], schemas) for name, one in value.items())
        case {"type": "object", "additionalProperties": dict(kind)}:
            return isinstance(value, dict) and all(conforms(one, kind, schemas) for one in value.values())
        case {"type": str(kind)} if schema.keys() == {"type"}:
            python = {"null": NoneType, "boolean": bool, "integer": int, "number": float, "string": str}[kind]
            return type(value) is python or (kind == "number" and type(value) is int)
        case {} if not schema:
            return True
    raise ValueError(f"{schema} is not looked at")


def test_openapi_document_describes_all_that_was_asked_and_answered(told: Told) -> None:
    [described] = (answer for (_, call), answer in told.items() if call.target.endswith("/openapi.json"))
    document = json.loads(described.body)
    schemas = document["components"]["schemas"]
    problem = document["components"]["responses"]["Problem"]["content"][PROBLEM_TYPE]["schema"]
    asked = 0
    for route in (route for group in GROUPS for route in group.routes):
        operation = document["paths"][route.path][route.method.lower()]
        found = {(each["name"], each["in"]) for each in operation["parameters"]}
        assert found == {
            *((name, "path") for name in _IN_PATH.findall(route.path)),
            *((name, "query") for name in routes[route.method, route.path].query),
        }
        for call in route.calls:
            answer = told[route.method, call]
            kind = answer.headers["content-type"]
            if kind == PROBLEM_TYPE:
                assert conforms(json.loads(answer.body), problem, schemas), route
            elif kind == JSON_TYPE and answer.body:
                schema = operation["responses"]["2XX"]["content"][JSON_TYPE]["schema"]
                assert conforms(json.loads(answer.body), schema, schemas), (route, answer, schema)
                asked += 1
            else:
                assert "content" not in operation["responses"]["2XX"], route
            if routes[route.method, route.path].body_type == JSON_TYPE and call.status < HTTPStatus.BAD_REQUEST:
                schema = operation["requestBody"]["content"][JSON_TYPE]["schema"]
                assert conforms(json.loads(call.body), schema, schemas), (route, call.body)
                assert not conforms({"colour": 1}, schema, schemas), route
    assert asked > len(routes) / 2
    assert {path for path, methods in document["paths"].items() for _ in methods} == {path for _, path in routes}


def test_what_is_no_json_has_no_schema() -> None:
    for wrong in (bytes, set[int], list):
        with pytest.raises(TypeError, match="has no schema"):
            Schemas().of(wrong)


def described(method: str, path: str) -> Mapping[str, Any]:
    document: Any = openapi_document(ROUTES)
    operation: Mapping[str, Any] = document["paths"][path][method]
    return operation


def test_openapi_document_tells_needed_parameters_and_truth_values() -> None:
    folder = "/api/v1/users/{user}/folders/{name}"
    [user, name, to] = described("put", f"{folder}/name")["parameters"]
    assert [each["required"] for each in (user, name, to)] == [True, True, True]
    [_, _, new, _] = described("put", folder)["parameters"]
    assert (new["name"], new["required"], new["schema"]) == ("new", False, {"type": "boolean"})
    assert all(route.needed <= route.query for route in ROUTES)


@pytest.mark.parametrize("taken", [route.takes for route in ROUTES if route.takes is not None])
def test_what_may_be_left_out_may_be_null(taken: object) -> None:
    schemas = Schemas()
    schemas.of(taken, may_be_left_out=True)
    for name, schema in schemas.named.items():
        members: Any = schema["properties"]
        needed: Any = schema["required"]
        for member in members.keys() - needed:
            assert conforms(None, members[member], schemas.named), (name, member)


def test_two_classes_of_one_name_have_no_schema() -> None:
    schemas = Schemas()
    schemas.of(make_dataclass("Twin", [("one", int)]))
    with pytest.raises(TypeError, match="has its name"):
        schemas.of(make_dataclass("Twin", [("other", int)]))
    schemas.of(CheckOptions)
    with pytest.raises(TypeError, match="has its name"):
        schemas.of(CheckOptions, may_be_left_out=True)


def test_page_has_all_routes_and_parameters() -> None:
    shown = [(route.method, route.path) for group in GROUPS for route in group.routes]
    assert sorted(shown) == sorted(routes)
    used = {name for route in ROUTES for name in (*_IN_PATH.findall(route.path), *route.query)}
    assert used == PARAMETERS.keys()
    assert all(first_sentences(route) for route in ROUTES)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"a": 1}, {"a": 2.5}, True),
        ({"a": 1}, {"a": None}, True),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, {"a": "1"}, False),
        ([{"a": 1}], [{"a": 1, "b": 2}], False),
        ([], [{"a": 1}], True),
        ({"a": {}}, {"a": 1}, False),
    ],
)
def test_answers_are_compared_by_their_members(one: object, other: object, *, alike: bool) -> None:
    assert is_alike(one, other) is alike
